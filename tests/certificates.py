"""What a certificate needs besides names and times: Python 3.13 checks them strictly."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


def with_key_identifiers(
    builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, issuer: EllipticCurvePrivateKey, authority: bool
) -> x509.CertificateBuilder:
    """Add the identifiers of a certificate's key and of its issuer's (RFC 5280, sections 4.2.1.1 and 4.2.1.2), and for
    an authority's what it signs."""
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), False)
    if not authority:
        return builder
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return builder.add_extension(usage, True)
