# The NCCL side of libmuster: units, the stand-in library, and the small programs that tests/blackbox/test_sdk_nccl.py and
# tests/lab/test_nccl_id.py run.
if(NOT TARGET muster_sdk OR MUSTER_WITH_NCCL STREQUAL "OFF")
    return()
endif()
set(sdk ${PROJECT_SOURCE_DIR}/worker-sdk)
set(programs ${PROJECT_SOURCE_DIR}/tests/sdk)

add_library(nccl_standin SHARED ${programs}/nccl_standin.c)
target_compile_definitions(nccl_standin PRIVATE _GNU_SOURCE)
# No sanitizer: whoever loads it may have none.
target_compile_options(nccl_standin PRIVATE -Wall -Wextra -Wno-unused-parameter -fvisibility=hidden
    $<$<BOOL:${MUSTER_WERROR}>:-Werror>)
set_target_properties(nccl_standin PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/sdk)

foreach(name nccl_ids nccl_ops)
    add_executable(${name} ${programs}/${name}.c)
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
    target_link_libraries(${name} PRIVATE mu_flags muster::sdk ${CMAKE_DL_LIBS})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/sdk)
endforeach()

mu_unit(sdk.nccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_nccl.c ${sdk}/src/nccl/nccl_lib.c ${sdk}/src/nccl/cuda_lib.c ${sdk}/src/nccl/nccl_free.c
    ${sdk}/src/core/error.c LINK mu_base ${CMAKE_DL_LIBS})
target_include_directories(unit_sdk_nccl PRIVATE ${sdk}/include)
target_compile_definitions(unit_sdk_nccl PRIVATE STANDIN="$<TARGET_FILE:nccl_standin>")
add_dependencies(unit_sdk_nccl nccl_standin)

mu_unit(sdk.id SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_id.c LINK muster::sdk)

# Our declarations beside NCCL's own header, where that is installed: compiling is the test.
if(MUSTER_HAVE_NCCL AND MUSTER_HAVE_CUDA)
    mu_unit(sdk.nccl_header SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_nccl_header.c)
    target_include_directories(unit_sdk_nccl_header PRIVATE ${sdk}/include)
    target_include_directories(unit_sdk_nccl_header SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDA_INCLUDE_DIR})
else()
    add_test(NAME unit.sdk.nccl_header COMMAND sh -c "echo 'nccl.h or cuda_runtime_api.h is not installed'; exit 77")
    set_tests_properties(unit.sdk.nccl_header PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
endif()

# Over two hosts of our own making.
find_program(MUSTER_PYTEST NAMES pytest-3 pytest py.test PATHS /usr/bin NO_DEFAULT_PATH)
if(MUSTER_PYTEST)
    add_test(NAME lab.nccl_id COMMAND ${MUSTER_PYTEST} -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/lab/test_nccl_id.py)
    set_tests_properties(lab.nccl_id PROPERTIES LABELS lab RUN_SERIAL TRUE TIMEOUT 400 SKIP_RETURN_CODE 77
        ENVIRONMENT "MUSTER_BIN_DIR=${PROJECT_BINARY_DIR}/bin;PYTHONDONTWRITEBYTECODE=1")
endif()

# The GPU's network beside the CPU's: on a GPU (bench/gpu_check.sh runs it), and here with CUDA emulated, which tests kernels and
# their order, and neither CUDA's nor cuBLAS's own behaviour.
if(TARGET trainer_net)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    set(emulated ${programs}/nccl_emulated)
    set(translated ${CMAKE_CURRENT_BINARY_DIR}/nccl_emulated_cuda.cpp)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        add_custom_command(OUTPUT ${translated}
            COMMAND ${Python3_EXECUTABLE} ${emulated}/translate.py ${PROJECT_SOURCE_DIR}/trainer-example/cuda.cu ${translated}
            DEPENDS ${emulated}/translate.py ${PROJECT_SOURCE_DIR}/trainer-example/cuda.cu VERBATIM)
        # On its own: the house's warnings are for C.
        add_library(nccl_emulated OBJECT ${translated})
        set_target_properties(nccl_emulated PROPERTIES CXX_STANDARD 17)
        target_include_directories(nccl_emulated BEFORE PRIVATE ${emulated} ${PROJECT_SOURCE_DIR} ${sdk}/include)
        # The CPU's rules for rounding, so that float64 shows a wrong index and not another order of sums.
        target_compile_options(nccl_emulated PRIVATE -O2 -w -ffp-contract=off)
        add_executable(nccl_nets_emulated ${programs}/nccl_nets.c $<TARGET_OBJECTS:nccl_emulated>)
        target_compile_definitions(nccl_nets_emulated PRIVATE _GNU_SOURCE)
        target_include_directories(nccl_nets_emulated PRIVATE ${PROJECT_SOURCE_DIR})
        target_link_libraries(nccl_nets_emulated PRIVATE trainer_net muster::sdk Threads::Threads m)
        set_target_properties(nccl_nets_emulated PROPERTIES LINKER_LANGUAGE CXX)
        foreach(type float32 float64)
            add_test(NAME unit.sdk.nccl_nets.${type} COMMAND nccl_nets_emulated ${PROJECT_SOURCE_DIR}/tests/data/digits.bin ${type} 3)
            set_tests_properties(unit.sdk.nccl_nets.${type} PROPERTIES LABELS unit TIMEOUT 120)
        endforeach()
    endif()
    get_target_property(definitions trainer COMPILE_DEFINITIONS)
    if("TRAINER_CUDA" IN_LIST definitions)
        add_executable(nccl_nets ${programs}/nccl_nets.c)
        target_compile_definitions(nccl_nets PRIVATE _GNU_SOURCE)
        target_include_directories(nccl_nets PRIVATE ${PROJECT_SOURCE_DIR})
        target_link_libraries(nccl_nets PRIVATE trainer_net muster::sdk m)
        set_target_properties(nccl_nets PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/sdk)
        # A communicator of real NCCL, and the overlap.
        add_executable(nccl_gpu ${programs}/nccl_gpu.c)
        target_compile_definitions(nccl_gpu PRIVATE _GNU_SOURCE)
        target_include_directories(nccl_gpu SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
        target_link_libraries(nccl_gpu PRIVATE mu_flags muster::sdk ${TRAINER_CUDART} ${CMAKE_DL_LIBS} rt m Threads::Threads)
        set_target_properties(nccl_gpu PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/sdk)
        add_test(NAME gpu.nets COMMAND nccl_nets ${PROJECT_SOURCE_DIR}/tests/data/digits.bin float64 60)
        set_tests_properties(gpu.nets PROPERTIES LABELS gpu TIMEOUT 120 SKIP_RETURN_CODE 77)
    endif()
endif()
