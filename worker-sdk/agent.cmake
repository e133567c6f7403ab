# What a worker tells its agent: progress, sections, failures; and the Python module.
target_sources(muster_sdk PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src/progress.c ${CMAKE_CURRENT_SOURCE_DIR}/src/progress_line.c
    ${CMAKE_CURRENT_SOURCE_DIR}/src/fail.c ${CMAKE_CURRENT_SOURCE_DIR}/src/log.c)
# Beside the library, which the module finds from there: PYTHONPATH=<libdir>/muster/python.
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/python/muster DESTINATION ${CMAKE_INSTALL_LIBDIR}/muster/python COMPONENT sdk
    FILES_MATCHING PATTERN "*.py")
