"""A self-signed certificate of a host, and whether one is still good, by OpenSSL's libcrypto.

Python's `ssl` is linked with that library and has no call for either. Knows no file and no cluster.
What is allocated is not freed: the process makes one certificate and ends.
"""

from __future__ import annotations

import ctypes
import secrets
from ctypes import byref, c_char_p, c_int, c_long, c_longlong, c_uint64, c_void_p
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

LIBRARY: Final = "libcrypto.so.3"
DAY_SECONDS: Final = 24 * 60 * 60
SKEW_SECONDS: Final = 60 * 60
"""By which clocks may differ."""
MAX_PEM_BYTES: Final = 1 << 16
_ASCII: Final = 0x1001  # MBSTRING_ASC
_VERSION_3: Final = 2
_EXTENSIONS: Final = {
    87: b"critical,CA:FALSE",  # NID_basic_constraints
    83: b"critical,digitalSignature",  # NID_key_usage
    126: b"serverAuth",  # NID_ext_key_usage
}
_ALTERNATIVE_NAME: Final = 85  # NID_subject_alt_name


class LibcryptoError(Exception):
    """A call of the library failed; `str()` names it."""


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str


def self_signed(name: str, host: str, days: int) -> CertificatePair:
    """A new key, and its certificate for `host`, which is its own authority.

    Raises:
        LibcryptoError: the library cannot make it.
    """
    key, certificate = _new_key(), _pointer("X509_new")
    _done("X509_set_version", certificate, c_long(_VERSION_3))
    serial = _pointer("X509_get_serialNumber", certificate)
    _done("ASN1_INTEGER_set_uint64", serial, c_uint64(secrets.randbits(63) | 1))
    for end, seconds in (("notBefore", -SKEW_SECONDS), ("notAfter", days * DAY_SECONDS)):
        moment = _pointer(f"X509_getm_{end}", certificate)
        _pointer("X509_gmtime_adj", moment, c_long(seconds))
    subject = _pointer("X509_get_subject_name", certificate)
    text = c_char_p(name.encode())
    _done("X509_NAME_add_entry_by_txt", subject, b"CN", c_int(_ASCII), text, -1, -1, 0)
    _done("X509_set_issuer_name", certificate, subject)
    _done("X509_set_pubkey", certificate, key)
    for nid, value in {**_EXTENSIONS, _ALTERNATIVE_NAME: f"DNS:{host}".encode()}.items():
        extension = _pointer("X509V3_EXT_conf_nid", None, None, c_int(nid), value)
        _done("X509_add_ext", certificate, extension, -1)
    _done("X509_sign", certificate, key, _pointer("EVP_sha256"))
    return CertificatePair(
        _pem("PEM_write_bio_X509", certificate),
        _pem("PEM_write_bio_PrivateKey", key, None, None, 0, None, None),
    )


def is_good(pem: str, host: str, until: datetime) -> bool:
    """Whether a certificate is one, of `host`, and valid until then."""
    text = pem.encode()
    buffer = _pointer("BIO_new_mem_buf", c_char_p(text), c_int(len(text)))
    certificate = c_void_p(_function("PEM_read_bio_X509", c_void_p)(buffer, None, None, None))
    if not certificate:
        _function("ERR_clear_error", None)()  # else `ssl` might take it for one of its own
        return False
    name = host.encode()
    if _function("X509_check_host", c_int)(certificate, name, len(name), 0, None) != 1:
        return False
    end, moment = _pointer("X509_get0_notAfter", certificate), c_longlong(int(until.timestamp()))
    return bool(_function("X509_cmp_time", c_int)(end, byref(moment)) == 1)


def _new_key() -> c_void_p:
    """Of the curve P-256."""
    context = _pointer("EVP_PKEY_CTX_new_from_name", None, b"EC", None)
    _done("EVP_PKEY_keygen_init", context)
    _done("EVP_PKEY_CTX_set_group_name", context, b"P-256")
    key = c_void_p()
    _done("EVP_PKEY_generate", context, byref(key))
    return key


def _pem(writer: str, item: c_void_p, *options: Any) -> str:
    memory = _pointer("BIO_new", _pointer("BIO_s_mem"))
    _done(writer, memory, item, *options)
    buffer = ctypes.create_string_buffer(MAX_PEM_BYTES)
    _done("BIO_read", memory, buffer, c_int(MAX_PEM_BYTES))
    return buffer.value.decode()


def _pointer(name: str, *arguments: Any) -> c_void_p:
    """The result of a call that returns a pointer."""
    if not (result := c_void_p(_function(name, c_void_p)(*arguments))):
        raise LibcryptoError(name)
    return result


def _done(name: str, *arguments: Any) -> None:
    """A call that returns a positive number unless it fails."""
    if _function(name, c_int)(*arguments) <= 0:
        raise LibcryptoError(name)


def _function(name: str, result: Any) -> Any:
    function = getattr(_library(), name)
    function.restype = result
    return function


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise LibcryptoError(str(error)) from None
