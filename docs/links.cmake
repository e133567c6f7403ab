# Run at install time over the installed pages in MUSTER_DOC_DIR: links lead to what is installed beside a page; what only the source tree
# has is named instead.
file(GLOB_RECURSE pages ${MUSTER_DOC_DIR}/*.md)
foreach(page ${pages})
    file(READ ${page} text)
    set(was "${text}")
    # README.md and CHANGELOG.md stood above docs/.
    string(REPLACE "](docs/" "](" text "${text}")
    string(REGEX REPLACE "\\]\\((\\.\\./)+(README|CHANGELOG)\\.md\\)" "](../\\2.md)" text "${text}") # From guides/.
    # Out of docs/, from whatever depth: up, to one of the folders beside it.
    string(REGEX REPLACE "\\]\\((\\.\\./)+(trainer-example|worker-sdk|tests|systemd|tools|bench|rendezvous|agent|launcher|base)/([^)]*)\\)"
        "] (\\2/\\3 in the source)" text "${text}")
    string(REGEX REPLACE "\\]\\((trainer-example|worker-sdk|tests|systemd|tools|bench|rendezvous|agent|launcher|base)/([^)]*)\\)"
        "] (\\1/\\2 in the source)" text "${text}")
    if(NOT text STREQUAL was)
        string(REGEX REPLACE "\\[([^]\n]*)\\] \\(([^)]* in the source\\))" "\\1 (\\2" text "${text}")
        file(WRITE ${page} "${text}")
    endif()
endforeach()
