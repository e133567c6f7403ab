# The communicator: its plans alone, the backend over sockets with threads as ranks, and the programs of
# tests/blackbox/test_sdk_comm.py.
if(NOT TARGET muster_sdk)
    return()
endif()
set(sdk_src ${PROJECT_SOURCE_DIR}/worker-sdk/src)
set(sdk_tcp ${sdk_src}/comm/comm.c ${sdk_src}/comm/tcp.c ${sdk_src}/comm/tcp_run.c ${sdk_src}/comm/tcp_step.c ${sdk_src}/comm/tcp_ring.c ${sdk_src}/comm/tcp_shm.c ${sdk_src}/comm/tcp_fail.c ${sdk_src}/comm/tcp_plan.c ${sdk_src}/comm/tcp_reduce.c
    ${sdk_src}/comm/tcp_link.c ${sdk_src}/comm/tcp_mesh.c ${sdk_src}/core/error.c
    ${sdk_src}/agent/progress_line.c)
mu_unit(sdk.comm_plan SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_plan.c ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_rig.c ${sdk_tcp} LINK mu_base Threads::Threads)
mu_unit(sdk.comm SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm.c ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_rig.c ${sdk_tcp} LINK mu_base Threads::Threads)
mu_unit(sdk.comm_mesh SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_mesh.c ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_rig.c ${sdk_tcp} LINK mu_base Threads::Threads)
mu_unit(sdk.comm_shm SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_comm_shm.c ${sdk_src}/comm/tcp_shm.c LINK mu_base Threads::Threads)
foreach(part comm_plan comm comm_mesh comm_shm)
    target_include_directories(unit_sdk_${part} PRIVATE ${PROJECT_SOURCE_DIR}/worker-sdk/include)
endforeach()

add_executable(comm_rank ${PROJECT_SOURCE_DIR}/tests/sdk/comm_rank.c)
target_compile_definitions(comm_rank PRIVATE _GNU_SOURCE)
target_link_libraries(comm_rank PRIVATE mu_flags muster::sdk Threads::Threads)
set_target_properties(comm_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/sdk)
