# The store. Everywhere: what is kept in corpus/store, and inputs made from it, through fuzz_store_replay. With clang and MUSTER_FUZZ also
# libFuzzer: fuzz_store -max_total_time=600 NEW_FOLDER corpus/store
add_executable(fuzz_store_replay fuzz_store.c replay_mutated.c)
target_compile_definitions(fuzz_store_replay PRIVATE _GNU_SOURCE)
target_link_libraries(fuzz_store_replay PRIVATE mu_flags store)
add_test(NAME fuzz.store.replay
    COMMAND fuzz_store_replay ${CMAKE_CURRENT_LIST_DIR}/corpus/store --mutate 3000 1)
set_tests_properties(fuzz.store.replay PROPERTIES LABELS fuzz TIMEOUT 120)
if(MUSTER_FUZZ)
    add_executable(fuzz_store fuzz_store.c)
    target_compile_options(fuzz_store PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_store PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_store PRIVATE mu_flags store)
    add_test(NAME fuzz.store COMMAND fuzz_store -runs=20000 -max_len=8192 -seed=1 ${CMAKE_CURRENT_BINARY_DIR}
        ${CMAKE_CURRENT_LIST_DIR}/corpus/store)
    set_tests_properties(fuzz.store PROPERTIES LABELS fuzz TIMEOUT 300)
endif()
