# The SDK's core: who am I, the store's client and server, PMI, the sampler. What is inside the library is compiled into the test.
set(SDK ${PROJECT_SOURCE_DIR}/worker-sdk/src)
set(SDK_STORE ${SDK}/store/store_wire.c ${SDK}/store/store_client.c ${SDK}/store/store_barrier.c ${SDK}/store/store_serve.c ${SDK}/core/error.c)

# Programs that black-box tests drive: users of the library, as an outsider would be.
function(mu_sdk_core_program name source)
    add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/sdk/${source})
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
    target_link_libraries(${name} PRIVATE mu_flags muster::sdk)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()
mu_sdk_core_program(sdk_core_store core_store.c)
mu_sdk_core_program(sdk_core_rank core_rank.c)

mu_unit(sdk.env SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_env.c ${SDK}/core/env.c ${SDK}/core/env_slurm.c ${SDK}/core/error.c LINK mu_base)
mu_unit(sdk.pmi SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_pmi.c ${SDK}/core/pmi.c ${SDK}/core/error.c LINK mu_base)
mu_unit(sdk.store SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_store.c ${SDK_STORE} LINK mu_base store Threads::Threads)
mu_unit(sdk.sampler SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sdk_sampler.c ${SDK}/sampler/sampler.c ${SDK}/sampler/randperm.c ${SDK}/sampler/mt19937.c ${SDK}/core/error.c
    LINK mu_base PkgConfig::CJSON)
foreach(test env pmi store sampler)
    target_include_directories(unit_sdk_${test} PRIVATE ${PROJECT_SOURCE_DIR}/worker-sdk/include)
endforeach()
if(DEFINED ENV{MUSTER_EXTRA}) # The sizes at which randperm changes its way: 900 MB of memory, three minutes.
    add_test(NAME unit.sdk.sampler.large COMMAND unit_sdk_sampler --large)
    set_tests_properties(unit.sdk.sampler.large PROPERTIES LABELS extra TIMEOUT 900 RUN_SERIAL TRUE)
endif()
