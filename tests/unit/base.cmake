# The base room: errors, strings, numbers, JSON, addresses, log lines, control messages.
mu_unit(base.err SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_err.c LINK mu_base_pure)
mu_unit(base.str SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_str.c LINK mu_base_pure)
mu_unit(base.parse SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_parse.c LINK mu_base_pure)
mu_unit(base.json SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_json.c LINK mu_base_pure PkgConfig::CJSON)
mu_unit(base.cause SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_cause.c LINK mu_base_pure)
mu_unit(base.ctl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_ctl.c LINK mu_ctl)
mu_unit(base.log SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_log.c LINK mu_base PkgConfig::CJSON)
mu_unit(base.addr SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_addr.c LINK mu_base)
