from __future__ import annotations

import ssl

import pytest

from spark_kafka_sink.security.tls import TlsSettings, tls_context
from tests.support.security.certificates import STORE_PASSWORD

TLS_1_3 = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
)
ECDHE = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


def refusal(**settings):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        TlsSettings(**settings)
    assert "planted" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"truststore_type": "BKS"}, "ssl.truststore.type must be one of: JKS, PKCS12, PEM"),
        ({"truststore_location": ""}, "ssl.truststore.location must not be empty"),
        (
            {"truststore_type": "PEM", "truststore_certificates": ""},
            "ssl.truststore.certificates must not be empty",
        ),
        (
            {"keystore_type": "PEM", "keystore_key": "", "keystore_certificate_chain": ""},
            "ssl.keystore.key must not be empty",
        ),
        (
            {"truststore_certificates": "planted"},
            "ssl.truststore.certificates requires ssl.truststore.type=PEM",
        ),
        (
            {
                "truststore_type": "PEM",
                "truststore_certificates": "planted",
                "truststore_location": "/x",
            },
            "ssl.truststore.certificates and ssl.truststore.location cannot both be set",
        ),
        (
            {
                "truststore_type": "PEM",
                "truststore_location": "/x",
                "truststore_password": "planted",
            },
            "ssl.truststore.password does not apply to PEM",
        ),
        ({"truststore_password": "planted"}, "ssl.truststore.password requires ssl.truststore.loc"),
        ({"keystore_type": "x"}, "ssl.keystore.type must be one of"),
        ({"keystore_key": "planted"}, "ssl.keystore.key and ssl.keystore.certificate.chain must"),
        (
            {"keystore_key": "planted", "keystore_certificate_chain": "planted"},
            "ssl.keystore.key requires ssl.keystore.type=PEM",
        ),
        (
            {"keystore_type": "PEM", "keystore_password": "planted"},
            "ssl.keystore.password does not apply to PEM",
        ),
        (
            {"keystore_location": "/x"},
            "ssl.keystore.location requires ssl.keystore.password; or, if the file is in PEM, ",
        ),
        (
            {"keystore_password": "planted"},
            "ssl.keystore.password requires ssl.keystore.location",
        ),
        (
            {"keystore_location": "/x", "keystore_password": "planted", "key_password": "planted2"},
            "ssl.key.password must be the same as ssl.keystore.password",
        ),
        ({"key_password": "planted"}, "ssl.key.password requires ssl.keystore.location or"),
        ({"protocol": "SSLv3"}, "ssl.protocol must be one of: TLS, TLSv1.3, TLSv1.2"),
        ({"enabled_protocols": ("TLSv1.1",)}, "ssl.enabled.protocols must be some of"),
        (
            {"protocol": "TLSv1.2", "enabled_protocols": ("TLSv1.3",)},
            "ssl.protocol=TLSv1.2 allows none of ssl.enabled.protocols",
        ),
        ({"cipher_suites": ("TLS_NULL",)}, "ssl.cipher.suites: 'TLS_NULL' is unknown"),
        (
            {"cipher_suites": ("TLS_RSA_WITH_CHACHA20_POLY1305_SHA256",)},
            "ssl.cipher.suites: 'TLS_RSA_WITH_CHACHA20_POLY1305_SHA256' is unknown",
        ),
        ({"cipher_suites": TLS_1_3[:1]}, "ssl.cipher.suites cannot choose among the suites of"),
        (
            {"cipher_suites": TLS_1_3, "enabled_protocols": ("TLSv1.2",)},
            "ssl.cipher.suites has no suite for the enabled TLS versions",
        ),
    ],
)
def test_contradictory_settings_are_refused(settings, problem):
    """Settings that Kafka's DefaultSslEngineFactory rejects raise an error naming them."""
    assert refusal(**settings).startswith(problem)


@pytest.mark.parametrize("written", ["pem", "Pkcs12", "jks"])
def test_store_types_are_accepted_in_any_case(written):
    """A type of store has any case, as Java's KeyStore accepts it, and is kept in upper case."""
    settings = TlsSettings(truststore_type=written, keystore_type=written)
    assert (settings.truststore_type, settings.keystore_type) == (written.upper(),) * 2


def test_the_repr_hides_secrets():
    """The repr shows neither passwords nor keys nor certificates."""
    made = TlsSettings(
        truststore_type="PEM",
        truststore_certificates="planted-1",
        keystore_type="PEM",
        keystore_key="planted-2",
        keystore_certificate_chain="planted-3",
        key_password="planted-4",  # noqa: S106
    )
    assert "planted" not in repr(made)


def test_a_context_is_strict():
    """Certificates and host names are verified, and no version older than TLS 1.2 is used."""
    context = tls_context(TlsSettings())
    assert (ssl.CERT_REQUIRED, True) == (context.verify_mode, context.check_hostname)
    assert ssl.TLSVersion.TLSv1_2 == context.minimum_version
    assert ssl.TLSVersion.TLSv1_3 == context.maximum_version
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert not tls_context(TlsSettings(check_hostname=False)).check_hostname


@pytest.mark.parametrize("form", ["system", "text", "PEM", "PKCS12"])
@pytest.mark.parametrize("check_hostname", [True, False])
def test_only_its_setting_disables_host_name_verification(certificates, form, check_hostname):
    """Only ssl.endpoint.identification.algorithm affects this; certificates are verified."""
    authority = certificates.authority
    file = {"PEM": authority.pem_file, "PKCS12": authority.pkcs12_file}.get(form)
    settings = TlsSettings(
        check_hostname=check_hostname,
        truststore_type="PEM" if form == "text" else form if file else "JKS",
        truststore_certificates=authority.pem if form == "text" else None,
        truststore_location=str(file) if file else None,
        truststore_password=STORE_PASSWORD if form == "PKCS12" else None,
    )
    context = tls_context(settings, truststore=file.read_bytes() if file else None)
    assert (check_hostname, ssl.CERT_REQUIRED) == (context.check_hostname, context.verify_mode)


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({"protocol": "TLSv1.2"}, "TLSv1_2", "TLSv1_2"),
        ({"protocol": "TLS"}, "TLSv1_2", "TLSv1_3"),
        ({"enabled_protocols": ("TLSv1.3",)}, "TLSv1_3", "TLSv1_3"),
        ({"cipher_suites": (ECDHE,)}, "TLSv1_2", "TLSv1_2"),
        ({"cipher_suites": TLS_1_3}, "TLSv1_3", "TLSv1_3"),
        ({"cipher_suites": (*TLS_1_3, ECDHE)}, "TLSv1_2", "TLSv1_3"),
    ],
)
def test_the_settings_determine_the_tls_versions(settings, low, high):
    """A version is used if both settings allow it and a suite is left for it."""
    context = tls_context(TlsSettings(**settings))
    assert (low, high) == (context.minimum_version.name, context.maximum_version.name)


def test_cipher_suites_have_javas_names():
    """Exactly the named TLS 1.2 suites are offered."""
    context = tls_context(TlsSettings(cipher_suites=(ECDHE,)))
    offered = {it["name"] for it in context.get_ciphers() if it["protocol"] == "TLSv1.2"}
    assert {"ECDHE-RSA-AES256-GCM-SHA384"} == offered


@pytest.mark.parametrize(
    ("suite", "openssl"),
    [
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "DHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
    ],
)
def test_every_kind_of_cipher_suite_has_openssls_name(suite, openssl):
    """Every kind of suite has the name that OpenSSL uses."""
    context = tls_context(TlsSettings(cipher_suites=(suite,)))
    assert [openssl] == [it["name"] for it in context.get_ciphers() if it["protocol"] != "TLSv1.3"]


def test_cipher_suites_that_openssl_lacks_are_refused(monkeypatch):
    """The error names the setting and does not show the library's own error."""

    def refuse(_context, _ciphers):
        raise ssl.SSLError("No cipher can be selected")

    monkeypatch.setattr(ssl.SSLContext, "set_ciphers", refuse)
    with pytest.raises(
        ValueError, match=r"^ssl\.cipher\.suites names no suite that this OpenSSL supports$"
    ):
        tls_context(TlsSettings(cipher_suites=(ECDHE,)))


def test_a_malformed_certificate_is_refused():
    """The text between the two lines is not a certificate."""
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    settings = TlsSettings(truststore_type="PEM", truststore_certificates=pem)
    with pytest.raises(
        ValueError, match=r"^ssl\.truststore\.certificates contains a certificate that cannot be"
    ):
        tls_context(settings)


@pytest.mark.parametrize(
    ("content", "password", "problem"),
    [
        (b"\xfe\xed\xfe\xed...", "planted", "is in Java's own format (JKS or JCEKS), which is not"),
        (b"-----BEGIN CERTIFICATE-----", "planted", "is in PEM: set the type to PEM"),
        (b"garbage", "planted", "is not a PKCS12 store, or its password is wrong"),
        (b"", "planted", "is not a PKCS12 store, or its password is wrong"),
    ],
)
def test_the_error_for_an_unreadable_truststore_says_what_to_do(content, password, problem):
    """The error names the setting, the file and what to do, and not the password."""
    settings = TlsSettings(truststore_location="/x.jks", truststore_password=password)
    with pytest.raises(ValueError, match=r"^ssl\.truststore\.location /x\.jks ") as caught:
        tls_context(settings, truststore=content)
    assert problem in str(caught.value)
    assert "planted" not in str(caught.value)


def test_a_truststore_with_a_wrong_password_is_refused(certificates):
    """A wrong password cannot be told from a corrupt store."""
    content = certificates.authority.pkcs12_file.read_bytes()
    settings = TlsSettings(truststore_location="/x", truststore_password="planted")  # noqa: S106
    with pytest.raises(ValueError, match="its password is wrong"):
        tls_context(settings, truststore=content)


def test_an_unterminated_block_is_ignored(certificates):
    """A store that contains only such blocks takes no longer than any other."""
    begun = "-----BEGIN CERTIFICATE-----\nMII\n"
    settings = TlsSettings(truststore_type="PEM", truststore_location="/x")
    good = f"{begun}{certificates.authority.pem}"
    assert 1 == len(tls_context(settings, truststore=good.encode()).get_ca_certs())
    with pytest.raises(ValueError, match="contains no certificate in PEM"):
        tls_context(settings, truststore=(begun * 30_000).encode())


def test_an_encrypted_key_requires_its_password(certificates):
    """A wrong or missing password for a locked key fails without a prompt on the terminal."""
    content = certificates.client.encrypted_pem_file.read_bytes()
    for password in (None, "planted"):
        settings = TlsSettings(keystore_type="PEM", keystore_location="/x", key_password=password)
        with pytest.raises(ValueError, match=r"check ssl\.key\.password") as caught:
            tls_context(settings, keystore=content)
        assert "planted" not in str(caught.value)
    good = TlsSettings(keystore_type="PEM", keystore_location="/x", key_password=STORE_PASSWORD)
    tls_context(good, keystore=content)


def test_a_key_must_match_its_certificate(certificates):
    """A key next to another key's certificate is refused."""
    settings = TlsSettings(
        keystore_type="PEM",
        keystore_key=certificates.client.key,
        keystore_certificate_chain=certificates.server.chain,
    )
    with pytest.raises(ValueError, match="does not belong to the first certificate"):
        tls_context(settings)
