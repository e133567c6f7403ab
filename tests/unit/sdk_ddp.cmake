# The reducer on a communicator that is a fake, checkpoints, and what a worker tells its agent. Their files alone, so that a test
# reaches what the shared library does not export.
set(sdk_src ${PROJECT_SOURCE_DIR}/worker-sdk/src)
if(TARGET muster_sdk)
    mu_unit(sdk.ddp SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_ddp.c ${sdk_src}/ddp/ddp.c ${sdk_src}/ddp/ddp_check.c
        ${sdk_src}/comm/tcp_reduce.c ${sdk_src}/core/error.c LINK mu_base)
    mu_unit(sdk.checkpoint SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_checkpoint.c ${sdk_src}/ddp/checkpoint.c ${sdk_src}/ddp/checkpoint_files.c
        ${sdk_src}/core/error.c LINK mu_base)
    mu_unit(sdk.progress SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_progress.c ${sdk_src}/agent/progress.c ${sdk_src}/agent/progress_line.c
        ${sdk_src}/agent/fail.c ${sdk_src}/agent/log.c ${sdk_src}/core/error.c LINK agent_workers)
    foreach(part ddp checkpoint progress)
        target_include_directories(unit_sdk_${part} PRIVATE ${PROJECT_SOURCE_DIR}/worker-sdk/include)
    endforeach()

    # Programs that black-box tests drive: users of the library, as an outsider would be.
    foreach(part checkpoint progress ranks)
        add_executable(sdk_ddp_${part} ${PROJECT_SOURCE_DIR}/tests/sdk/ddp_${part}.c)
        target_link_libraries(sdk_ddp_${part} PRIVATE mu_flags muster_sdk)
        target_compile_definitions(sdk_ddp_${part} PRIVATE _GNU_SOURCE)
        set_target_properties(sdk_ddp_${part} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    endforeach()
endif()
