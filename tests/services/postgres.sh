# PostgreSQL: a cluster of our own, beside any that the system runs. Sourced, not run.
# shellcheck shell=bash
# shellcheck disable=SC2154  # what is used here is set in lib.sh

# Where initdb and pg_ctl lie: the version that docker-compose.yml has, else the newest here.
postgres_bin() {
  local newest
  if [[ -n ${PROJECTOR_TEST_POSTGRES_BIN:-} ]]; then
    echo "$PROJECTOR_TEST_POSTGRES_BIN"
  elif [[ -x /usr/lib/postgresql/$postgres_version/bin/initdb ]]; then
    echo "/usr/lib/postgresql/$postgres_version/bin"
  elif newest=$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1) && [[ -n $newest ]]; then
    dirname "$newest"
  elif have initdb; then
    dirname "$(command -v initdb)"
  else
    return 1
  fi
}

postgres_prepare() {
  local bin major
  postgres_bin >/dev/null || install_packages postgresql
  bin=$(postgres_bin) && [[ -x $bin/initdb ]] || die 2 "missing: postgresql (no initdb in '${bin:-PATH}')"
  major=$("$bin/initdb" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
  ((major >= postgres_version)) || die 2 "PostgreSQL $postgres_version or later is needed, this is $major"
}

# The server refuses to run as root.
postgres_owner() {
  if [[ $(id -u) == 0 ]]; then echo postgres; else id -un; fi
}

as_postgres() {
  if [[ $(id -u) == 0 ]]; then (cd / && runuser -u "$(postgres_owner)" -- "$@" 9>&-); else "$@" 9>&-; fi
}

# The directory of the cluster. Normally inside the state directory; a clone below a directory that the server's user
# may not enter gets one under /tmp, remembered in `home`.
postgres_home() { cat "$state/postgres/home" 2>/dev/null; }

make_postgres_home() {
  local home=$state/postgres/cluster
  rm -rf "$state/postgres"
  mkdir -p "$home"
  chown "$(postgres_owner)" "$home"
  if ! as_postgres test -w "$home"; then
    home=$(mktemp -d /tmp/projector-postgres.XXXXXX)
    chown "$(postgres_owner)" "$home"
  fi
  echo "$home" >"$state/postgres/home"
}

postgres_start() {
  local home bin port
  postgres_remove_home
  make_postgres_home
  home=$(postgres_home)
  bin=$(postgres_bin)
  port=$(choose_port postgres)
  echo "$port" >"$state/postgres/port"
  init_cluster "$home" "$bin" || {
    show_log postgres
    die 1 "postgres: initdb failed"
  }
  cluster_settings "$home" "$port" | as_postgres tee -a "$home/data/postgresql.conf" >/dev/null
  # Whether it came up is asked by wait_for, which also shows the log.
  as_postgres "$bin/pg_ctl" -D "$home/data" -l "$home/log" -w -t 60 start >>"$state/postgres/log" 2>&1 || true
  ln -sf "$home/log" "$state/postgres/server.log"
}

# Passwords are asked for over TCP, so that tests can have wrong ones. The default collation is a linguistic one, as in
# most production databases: code that relies on the order of bytes has to say so.
init_cluster() {
  local home=$1 bin=$2
  printf '%s\n' "$postgres_password" | as_postgres tee "$home/password" >/dev/null
  as_postgres "$bin/initdb" -D "$home/data" -U "$postgres_user" --pwfile="$home/password" \
    --auth-local=trust --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C --locale-provider=icu --icu-locale=en-US >"$state/postgres/log" 2>&1 &&
    rm "$home/password"
}

cluster_settings() {
  local home=$1 port=$2 sockets=$1
  # A socket's path must fit into about 100 bytes.
  ((${#home} < 80)) || sockets=
  cat <<EOF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$sockets'
max_connections = 200
shared_buffers = '256MB'
max_wal_size = '2GB'
fsync = on
synchronous_commit = on
logging_collector = off
EOF
}

postgres_is_alive() {
  local home bin
  home=$(postgres_home) && bin=$(postgres_bin) || return 1
  as_postgres "$bin/pg_ctl" -D "$home/data" status >/dev/null 2>&1
}

postgres_answers() {
  local bin
  bin=$(postgres_bin)
  [[ $("$bin/psql" -XAtc 'select 1' "$(address_of postgres)" 2>/dev/null) == 1 ]]
}

postgres_stop() {
  local home bin
  if postgres_is_alive; then
    home=$(postgres_home)
    bin=$(postgres_bin)
    as_postgres "$bin/pg_ctl" -D "$home/data" -m fast -w -t 30 stop >>"$state/postgres/log" 2>&1 ||
      as_postgres "$bin/pg_ctl" -D "$home/data" -m immediate -w -t 10 stop >>"$state/postgres/log" 2>&1 || true
  fi
  postgres_remove_home
}

postgres_remove_home() {
  local home
  home=$(postgres_home) || return 0
  ! postgres_is_alive || die 1 "postgres: still running in $home"
  case $home in
    "$state"/postgres/cluster) rm -rf "$home/data" ;;
    /tmp/projector-postgres.*) rm -rf "$home" ;;
  esac
  rm -f "$state/postgres/home"
}
