# The core: who am I, the store's client and server, the sampler; and what an installed SDK looks like.
target_sources(muster_sdk PRIVATE src/error.c src/version.c src/env.c src/env_slurm.c src/pmi.c src/open.c
    src/store_wire.c src/store_client.c src/store_barrier.c src/store_serve.c src/mt19937.c src/randperm.c src/sampler.c)
set_source_files_properties(src/version.c PROPERTIES COMPILE_DEFINITIONS MUSTER_VERSION="${PROJECT_VERSION}")
target_link_libraries(muster_sdk PRIVATE $<BUILD_INTERFACE:mu_base> $<BUILD_INTERFACE:mu_base_pure> $<BUILD_INTERFACE:store>
    Threads::Threads)
# What the static libraries bring stays inside, whatever their own visibility.
target_link_options(muster_sdk PRIVATE -Wl,--exclude-libs,ALL)

# An installed SDK: headers, the library, muster.pc, and the CMake package whose target is muster::sdk.
include(CMakePackageConfigHelpers)
set(MUSTER_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
file(RELATIVE_PATH MUSTER_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p) # So that the tree can be moved.
configure_file(${CMAKE_CURRENT_SOURCE_DIR}/muster.pc.in ${CMAKE_CURRENT_BINARY_DIR}/muster.pc @ONLY)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/muster-config-version.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS muster_sdk EXPORT muster-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
install(EXPORT muster-targets NAMESPACE muster:: FILE muster-config.cmake DESTINATION ${MUSTER_CMAKE_DIR} COMPONENT sdk)
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include/muster DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk
    FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/muster.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT sdk)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/muster-config-version.cmake DESTINATION ${MUSTER_CMAKE_DIR} COMPONENT sdk)
