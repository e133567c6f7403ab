# The flags of every target, and the kinds of target there are: pure room, shell room, module, program, unit test.
add_library(mu_flags INTERFACE)
target_compile_options(mu_flags INTERFACE
    -Wall -Wextra -Wno-unused-parameter -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wcast-qual -Wundef -Wformat=2 -Wvla
    -Wswitch-enum -Wnull-dereference -Werror=implicit-function-declaration
    -fno-common -fstack-protector-strong -fno-omit-frame-pointer -fvisibility=hidden
    $<$<BOOL:${MUSTER_WERROR}>:-Werror>)
target_include_directories(mu_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/gen)
target_include_directories(mu_flags SYSTEM INTERFACE ${UTHASH_INCLUDE_DIR})
if(MUSTER_SANITIZE)
    target_compile_options(mu_flags INTERFACE -fsanitize=${MUSTER_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(mu_flags INTERFACE -fsanitize=${MUSTER_SANITIZE})
endif()
if(MUSTER_FUZZ)
    target_compile_options(mu_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(MUSTER_COVERAGE)
    target_compile_options(mu_flags INTERFACE --coverage -O0)
    target_link_options(mu_flags INTERFACE --coverage)
endif()
# Programs bind at link time, leave nothing they do not use in their table of needed libraries, and start faster for it.
target_link_options(mu_flags INTERFACE -Wl,--as-needed -Wl,-z,relro -Wl,-z,now)

# A pure room: strict ISO C, so that a clock, a socket or a file there does not compile.
function(mu_pure name)
    cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
    add_library(${name} STATIC ${A_SOURCES})
    target_link_libraries(${name} PUBLIC mu_flags ${A_LINK})
    set_property(GLOBAL APPEND PROPERTY MUSTER_PURE ${name})
endfunction()

# A shell room: may call the system.
function(mu_shell name)
    cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
    add_library(${name} STATIC ${A_SOURCES})
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
    target_link_libraries(${name} PUBLIC mu_flags ${A_LINK})
endfunction()

# A library that programs open on demand (base/module.h): muster_x is lib/muster/muster-x.so.
function(mu_module name)
    cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
    string(REPLACE "_" "-" file ${name})
    add_library(${name} MODULE ${A_SOURCES})
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
    target_link_libraries(${name} PRIVATE mu_flags ${A_LINK})
    set_target_properties(${name} PROPERTIES PREFIX "" OUTPUT_NAME ${file} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/muster)
    install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/muster COMPONENT programs)
    set_property(GLOBAL APPEND PROPERTY MUSTER_INSTALLED_programs ${name})
endfunction()

# COMPONENT: with whom it is installed (cmake/MusterInstall.cmake).
function(mu_program name)
    cmake_parse_arguments(A "" "COMPONENT" "SOURCES;LINK" ${ARGN})
    if(NOT A_COMPONENT)
        set(A_COMPONENT programs)
    endif()
    add_executable(${name} ${A_SOURCES})
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
    target_link_libraries(${name} PRIVATE mu_flags ${A_LINK})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${A_COMPONENT})
    set_property(GLOBAL APPEND PROPERTY MUSTER_INSTALLED_${A_COMPONENT} ${name})
endfunction()

# A cmocka test: unit.<name>, milliseconds. Further libraries and options after LINK and WRAP (names for -Wl,--wrap).
function(mu_unit name)
    cmake_parse_arguments(A "" "" "SOURCES;LINK;WRAP" ${ARGN})
    string(REPLACE "." "_" target "unit_${name}")
    add_executable(${target} ${A_SOURCES})
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE MUSTER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} PRIVATE mu_flags ${A_LINK} PkgConfig::CMOCKA)
    foreach(w ${A_WRAP})
        target_link_options(${target} PRIVATE -Wl,--wrap=${w})
    endforeach()
    add_test(NAME unit.${name} COMMAND ${target})
    set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT 60)
endfunction()
