# The page with its OPTIONS from the table that parses them. Semicolons and brackets are CMake's own: kept as they are by file(CONFIGURE).
execute_process(COMMAND ${DESCRIBE} node-agent-options OUTPUT_VARIABLE OPTIONS COMMAND_ERROR_IS_FATAL ANY)
configure_file(${IN} ${OUT} @ONLY)
