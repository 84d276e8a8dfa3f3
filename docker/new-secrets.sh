#!/bin/sh
# The files of compose.yaml's secrets: passwords are made, keys are left empty for you to fill. What is there already stays.
# With a word, those of a further cluster: ./new-secrets.sh second
#
# Only you and root enter the folder; the files in it can be read by all, as containers read them as other users. So can those that
# compose.yaml mounts from this clone, which has them as your umask says.
set -eu
cd "$(dirname "$0")"
cluster=${1:-}
keys="eth_private_key slurm_ssh_private_key slurm_ssh_ca_key slurm_submit_key slurm_jwt_key callback_key ldap_bind_password tls_key \
    metascheduler_endpoint_rpc metascheduler_endpoint_ws"

folder() {
    mkdir -p "$1"
    chmod "$2" "$1"
}
keep() { # NAME TEXT
    if [ ! -e "$1" ]; then printf '%s' "$2" >"$1"; fi
    chmod 644 "$1"
}

folder secrets 700
folder files 755
if [ -n "$cluster" ]; then folder "secrets/$cluster" 700; folder "files/$cluster" 755; fi
into=secrets${cluster:+/$cluster}
for name in $keys; do keep "$into/$name" ""; done
keep "files${cluster:+/$cluster}/known_hosts" ""
chmod a+r monitoring/*.yaml helm/grid-supervisor/files/*
if [ -n "$cluster" ]; then exit; fi

for name in postgres_password redis_password grafana_password flower_password; do keep "secrets/$name" "$(openssl rand -hex 24)"; done
for name in notify_webhook_url notify_webhook_token notify_slack_url notify_alertmanager_url notify_smtp_password \
    otel_exporter_otlp_endpoint; do
    keep "secrets/$name" ""
done
keep secrets/database_url "postgresql://postgres:$(cat secrets/postgres_password)@postgres/postgres"
keep secrets/broker_url "redis://:$(cat secrets/redis_password)@redis:6379/0"
keep secrets/flower_basic_auth "operator:$(cat secrets/flower_password)"
