#!/bin/sh
# What the official image's entrypoint does for POSTGRES_PASSWORD_FILE: the first start makes the database.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --pgdata "$PGDATA" --username postgres --pwfile "$POSTGRES_PASSWORD_FILE" --auth scram-sha-256 --encoding UTF8 --locale C
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
fi
exec "$@"
