# The key-value store, at its contract.
foreach(t commands waits codec memory direct)
    mu_unit(rendezvous.store.${t} SOURCES store_${t}.c store_rig.c LINK store)
endforeach()
mu_unit(rendezvous.store.captures SOURCES store_captures.c store_rig.c LINK store PkgConfig::CJSON)
