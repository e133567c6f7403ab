# muster: its command line, and the pages it makes of an answer.
mu_unit(base.words SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_words.c LINK mu_base_pure)
mu_unit(launcher.options SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/launcher_options.c LINK mu_cli_options)
mu_unit(launcher.pages SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/launcher_pages.c LINK mu_cli_pages)
mu_unit(launcher.jobs SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/launcher_jobs.c LINK mu_cli_pages)
mu_unit(launcher.sse SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/launcher_sse.c LINK mu_cli_pages)
mu_unit(launcher.doctor SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/launcher_doctor.c LINK mu_doctor_report)
