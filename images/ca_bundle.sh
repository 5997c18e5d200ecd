# Sourced by the build steps that download something. The optional build secret `ca-bundle` is a file
# of certificates to trust, for networks whose proxy signs with an authority of its own.
bundle=/run/secrets/ca-bundle
if [ -s "$bundle" ]; then
    export SSL_CERT_FILE="$bundle" PIP_CERT="$bundle"
fi
