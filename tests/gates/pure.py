"""Gate: a pure library asks the system for nothing. usage: pure.py NM ROOM ARCHIVE [OTHER_ARCHIVE...]

Symbols that ARCHIVE leaves open must be on the list below, or be defined by one of the other archives (the pure ones it may use).
"""
import re
import subprocess
import sys

# Functions of the C library that only compute. snprintf with our formats touches nothing but its buffer.
COMPUTES = set("""memchr memcmp memcpy memmove memset strchr strcmp strcspn strlen strncmp strncpy strnlen strpbrk strrchr strspn strstr
snprintf vsnprintf qsort bsearch __ctype_b_loc
__memcpy_chk __memmove_chk __memset_chk __snprintf_chk __vsnprintf_chk __strncpy_chk __strcpy_chk __stack_chk_fail
_GLOBAL_OFFSET_TABLE_
__assert_fail""".split())  # The last: utlist.h checks its own lists.
# What instrumented builds add.
INSTRUMENTS = re.compile(r"^(__asan_|__ubsan_|__tsan_|__sanitizer_|__gcov_|__llvm_|__sancov_|_ITM_|__gmon_|__fentry__|__tls_get_addr)")
# Beyond that, by room, with the reason.
ROOMS = {
    "mu_base_pure": {"abort", "stderr", "fprintf", "__fprintf_chk", "fwrite",  # check.c: the last words of a broken invariant
                     "realloc", "free"},                                      # mem.c: the heap, behind a table of functions
    "store": set(),
    "job": set(),
    "pool": set(),
    "life": set(),
    "agent_lines": set(),
    "agent_chaos": set(),
    "surroundings": set(),
    "service_book": set(),
    "mu_doctor_judge": {"cJSON_GetArrayItem", "cJSON_GetObjectItemCaseSensitive", "cJSON_IsArray", "cJSON_IsBool", "cJSON_IsFalse",
                        "cJSON_IsNull", "cJSON_IsNumber", "cJSON_IsObject", "cJSON_IsString", "cJSON_IsTrue"},  # Facts are read, not made.
}


def symbols(nm, archive, option):
    out = subprocess.run([nm, option, "--format=posix", archive], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in out.splitlines() if len(line.split()) >= 2 and not line.endswith(":")}


def main(nm, room, archive, others):
    defined = symbols(nm, archive, "--defined-only")
    for other in others:
        defined |= symbols(nm, other, "--defined-only")
    wanted = symbols(nm, archive, "-u") - defined - COMPUTES - ROOMS[room]
    wanted = sorted(s for s in wanted if not INSTRUMENTS.match(s))
    for s in wanted:
        print("%s: %s is not on the list of a pure room" % (room, s))
    print("pure rooms: %s defines %d symbols, %d faults" % (room, len(symbols(nm, archive, "--defined-only")), len(wanted)))
    sys.exit(1 if wanted else 0)


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
