# In place of python:3.11-slim-bookworm: Debian 12's own Python under the names and with the pip of the official image.
FROM rehearse-debian:12

# Certificates of this machine, so that a mirror of its own is believed.
COPY certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN rm /usr/lib/python3*/EXTERNALLY-MANAGED \
    && ln -s /usr/bin/python3 /usr/local/bin/python && ln -s /usr/bin/python3 /usr/local/bin/python3 \
    && python -m pip install --no-cache-dir pip==24.0 setuptools==79.0.1 wheel==0.45.1
CMD ["python"]
