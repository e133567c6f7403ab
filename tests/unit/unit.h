/* What every cmocka test wants first. */
#ifndef MUSTER_TESTS_UNIT_H
#define MUSTER_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The text holds the part; shows both when it does not. */
#define assert_has(text, part)                                                                     \
    do {                                                                                           \
        if (strstr((text), (part)) == NULL)                                                        \
            fail_msg("\"%s\" does not hold \"%s\"", (text), (part));                               \
    } while (0)

#endif
