/* Between the programs and muster-crypto.so, the module that knows libcrypto: it is opened where a
 * token is, and costs nothing where none is. */
#ifndef MUSTER_BASE_CRYPTO_MODULE_H
#define MUSTER_BASE_CRYPTO_MODULE_H

#include <stddef.h>
#include <stdint.h>

/* Raised when anything below changes: a module of another build is refused. */
#define MU_CRYPTO_ABI 1
#define MU_CRYPTO_SYMBOL "muster_crypto_module"
#define MU_HMAC_BYTES 32

struct mu_crypto_module {
    uint32_t abi;
    /* HMAC-SHA256 (RFC 2104). Returns 0, or -1: the library has no memory, or does not allow it. */
    int (*hmac_sha256)(const void *key,
                       size_t key_bytes,
                       const void *data,
                       size_t data_bytes,
                       unsigned char ret[MU_HMAC_BYTES]);
};

#endif
