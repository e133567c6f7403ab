/* muster-crypto.so: HMAC-SHA256, by OpenSSL's libcrypto; see crypto_module.h. */
#include "base/crypto_module.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

static int hmac_sha256(const void *key,
                       size_t key_bytes,
                       const void *data,
                       size_t data_bytes,
                       unsigned char ret[MU_HMAC_BYTES])
{
    unsigned n = 0;
    if (HMAC(EVP_sha256(), key, (int)key_bytes, data, data_bytes, ret, &n) == NULL)
        return -1;
    return n == MU_HMAC_BYTES ? 0 : -1;
}

__attribute__((visibility("default"))) extern const struct mu_crypto_module muster_crypto_module;
const struct mu_crypto_module muster_crypto_module = {.abi = MU_CRYPTO_ABI,
                                                      .hmac_sha256 = hmac_sha256};
