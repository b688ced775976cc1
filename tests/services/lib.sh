# Shared by the scripts of this directory and by tests/run: paths, ports, processes and packages. Sourced, not run.
# At its end it brings in the services, one file each: NAME_prepare, _start, _is_alive, _answers and _stop.
# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is read by the scripts that source it

services_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$services_dir/../.." && pwd)

# Everything that belongs to this clone's services: pid files, ports, logs, data.
state=${PROJECTOR_TEST_STATE:-$root/target/services}

# Downloads lie outside the clone, so that a fresh clone does not download again.
cache=${PROJECTOR_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/projector-tests}

kafka_version=4.1.1
registry_version=3.0.9
postgres_version=15

all_services=(kafka postgres registry)

# The user and password of the test database. It listens on 127.0.0.1 only and holds nothing worth keeping.
postgres_user=postgres
postgres_password=projector

say() { printf '%s\n' "$*" >&2; }

# Exit code 2: something is missing or used wrongly. Everything else that fails exits 1.
die() {
  local code=$1
  shift
  say "error: $*"
  exit "$code"
}

have() { command -v "$1" >/dev/null 2>&1; }

is_service() {
  local known
  for known in "${all_services[@]}"; do [[ $1 == "$known" ]] && return 0; done
  return 1
}

# ---- addresses ------------------------------------------------------------------------------------------------------

variable_of() {
  case $1 in
    kafka) echo PROJECTOR_TEST_KAFKA ;;
    postgres) echo PROJECTOR_TEST_POSTGRES ;;
    registry) echo PROJECTOR_TEST_REGISTRY ;;
  esac
}

# The same ports as in docker-compose.yml; each can be set by a variable.
default_port() {
  case $1 in
    kafka) echo 19092 ;;
    controller) echo 19093 ;;
    postgres) echo 15432 ;;
    registry) echo 18081 ;;
  esac
}

port_variable() {
  case $1 in
    kafka) echo PROJECTOR_TEST_KAFKA_PORT ;;
    controller) echo PROJECTOR_TEST_CONTROLLER_PORT ;;
    postgres) echo PROJECTOR_TEST_POSTGRES_PORT ;;
    registry) echo PROJECTOR_TEST_REGISTRY_PORT ;;
  esac
}

# What the tests are told; from the port that the service was started with.
address_of() {
  local port
  port=$(cat "$state/$1/port" 2>/dev/null) || return 1
  case $1 in
    kafka) echo "127.0.0.1:$port" ;;
    postgres) echo "postgres://$postgres_user:$postgres_password@127.0.0.1:$port/postgres" ;;
    registry) echo "http://127.0.0.1:$port/apis/ccompat/v7" ;;
  esac
}

# Somebody brought this service: its variable is set, and not just because the file that `up` wrote was sourced.
is_given() {
  local variable
  variable=$(variable_of "$1")
  [[ -n ${!variable:-} && ${!variable} != "$(address_of "$1" || true)" ]]
}

port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The configured port, else the default one, else the next that is free: several clones can test at a time.
choose_port() {
  local variable port tries
  variable=$(port_variable "$1")
  if [[ -n ${!variable:-} ]]; then
    ! port_answers "${!variable}" || die 2 "$variable=${!variable}: another program uses this port"
    echo "${!variable}"
    return
  fi
  port=$(default_port "$1")
  for ((tries = 0; tries < 50; tries++)); do
    if ! port_answers "$port"; then
      echo "$port"
      return
    fi
    port=$((port + 10))
  done
  die 1 "no free port for $1, tried up to $port"
}

# The status code of a GET on 127.0.0.1, without needing an HTTP client.
http_status() {
  local port=$1 path=$2
  (
    exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
    printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' "$path" >&3
    read -r -t 10 _ code _ <&3 || exit 1
    echo "$code"
  ) 2>/dev/null
}

# ---- processes ------------------------------------------------------------------------------------------------------

# Every process of ours carries this in its command line, so that a number in an old pid file that now belongs to
# another program is not taken for ours.
marker_of() { echo "-Dprojector.test.service=$state/$1"; }

# spawn SERVICE COMMAND…: in the background, detached from the terminal, with its output in a log.
spawn() {
  local service=$1
  shift
  local detach=(nohup)
  have setsid && detach=(setsid nohup)
  # 9 is the lock of `up`: a service that kept it open would hold the lock for as long as it lives.
  "${detach[@]}" "$@" >"$state/$service/log" 2>&1 </dev/null 9>&- &
  echo $! >"$state/$service/pid"
  # Until the new process has become the command, it carries this script's name.
  local tries
  for ((tries = 0; tries < 20; tries++)); do
    ! process_is_ours "$service" || return 0
    sleep 0.1
  done
}

process_is_ours() {
  local pid
  pid=$(cat "$state/$1/pid" 2>/dev/null) || return 1
  ps -ww -p "$pid" -o args= 2>/dev/null | grep -qF -- "$(marker_of "$1") "
}

stop_process() {
  local service=$1 pid tries
  process_is_ours "$service" || return 0
  pid=$(cat "$state/$service/pid")
  kill "$pid" 2>/dev/null || true
  for ((tries = 0; tries < 100; tries++)); do
    process_is_ours "$service" || return 0
    sleep 0.2
  done
  say "$service: does not end when asked to, killed"
  kill -9 "$pid" 2>/dev/null || true
}

# wait_for SERVICE SECONDS: until it truly answers; gives up at once when its process has died.
wait_for() {
  local service=$1 deadline=$((SECONDS + $2))
  until "${service}_answers"; do
    if ! "${service}_is_alive"; then
      show_log "$service"
      die 1 "$service: ended while starting"
    fi
    if ((SECONDS >= deadline)); then
      show_log "$service"
      die 1 "$service: no answer after $2 s"
    fi
    sleep 0.3
  done
}

show_log() {
  say "---- the last lines of the logs in $state/$1"
  tail -q -n 30 "$state/$1/log" "$state/$1/server.log" >&2 2>/dev/null || true
  say "----"
}

# One `up` or `down` at a time in a state directory. Where there is no flock, whoever runs two at once is on their own.
take_lock() {
  mkdir -p "$1"
  exec 9>"$1/lock"
  ! have flock || flock 9
}

# ---- packages -------------------------------------------------------------------------------------------------------

can_install() { [[ $(id -u) == 0 ]] && have apt-get; }

# install_packages NAME…: Debian packages where that is possible, else says what is missing.
install_packages() {
  (($#)) || return 0
  can_install || die 2 "missing: $*. These are Debian's package names; install them, or what your system calls them."
  say "installing: $*"
  # Without 9: what a package starts must not hold the lock of `up`.
  apt-get update -qq >&2 9>&- || say "apt-get update failed; trying with the lists that are here"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 9>&- ||
    die 2 "could not install: $*"
}

# ensure_commands COMMAND:PACKAGE…: installs the packages of the commands that are missing, in one go.
ensure_commands() {
  local pair missing=()
  for pair in "$@"; do
    have "${pair%%:*}" || missing+=("${pair#*:}")
  done
  install_packages ${missing[@]+"${missing[@]}"}
}

# ensure_java MAJOR
ensure_java() {
  local major
  ensure_commands java:default-jre-headless
  major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  ((${major:-0} >= $1)) || die 2 "java $1 or later is needed, this is ${major:-unknown}"
}

# maven_goal ARGUMENT…: three tries, since a download may be cut.
maven_goal() {
  local try
  ensure_commands mvn:maven
  for try in 1 2 3; do
    # -U: what failed a moment ago is asked for again.
    mvn -B -q -U -Dstyle.color=never -f "$services_dir/pom.xml" -Dkafka.version="$kafka_version" "$@" >&2 && return 0
    say "maven: try $try failed"
  done
  die 1 "maven could not fetch what the services need"
}

# shellcheck source=tests/services/kafka.sh
. "$services_dir/kafka.sh"
# shellcheck source=tests/services/postgres.sh
. "$services_dir/postgres.sh"
# shellcheck source=tests/services/registry.sh
. "$services_dir/registry.sh"
# shellcheck source=tests/services/compose.sh
. "$services_dir/compose.sh"
