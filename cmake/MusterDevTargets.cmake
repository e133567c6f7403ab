# format, format-check, tidy: what a developer types between edits.
file(GLOB_RECURSE MUSTER_C_FILES CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/base/*.[ch] ${PROJECT_SOURCE_DIR}/rendezvous/*.[ch] ${PROJECT_SOURCE_DIR}/agent/*.[ch]
    ${PROJECT_SOURCE_DIR}/launcher/*.[ch] ${PROJECT_SOURCE_DIR}/tests/*.[ch] ${PROJECT_SOURCE_DIR}/bench/*.[ch]
    ${PROJECT_SOURCE_DIR}/worker-sdk/*.[ch] ${PROJECT_SOURCE_DIR}/trainer-example/*.[ch] ${PROJECT_SOURCE_DIR}/tools/*.[ch])
find_program(CLANG_FORMAT NAMES clang-format-14 clang-format)
find_program(CLANG_TIDY NAMES clang-tidy-14 clang-tidy)
if(CLANG_FORMAT)
    add_custom_target(format COMMAND ${CLANG_FORMAT} -i ${MUSTER_C_FILES} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
    add_custom_target(format-check COMMAND ${CLANG_FORMAT} --dry-run -Werror ${MUSTER_C_FILES}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
if(CLANG_TIDY)
    add_custom_target(tidy COMMAND ${CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR} ${MUSTER_C_FILES}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
