# The same services in containers, where an engine runs. Sourced, not run.
# shellcheck shell=bash
# shellcheck disable=SC2154  # what is used here is set in lib.sh

# PROJECTOR_TEST_ENGINE=native or =compose decides; else an engine that answers is used.
use_compose() {
  case ${PROJECTOR_TEST_ENGINE:-} in
    native) return 1 ;;
    compose) return 0 ;;
    '') have docker && docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 ;;
    *) die 2 "PROJECTOR_TEST_ENGINE is native or compose, not ${PROJECTOR_TEST_ENGINE}" ;;
  esac
}

compose() { docker compose -f "$root/docker-compose.yml" "$@" >&2 9>&-; }

# A file for each service tells that it runs in a container which this clone has started.
in_container() { [[ -e $state/$1/container ]]; }

compose_is_running() {
  in_container "$1" &&
    docker compose -f "$root/docker-compose.yml" ps --services --status running 2>/dev/null | grep -qx "$1"
}

compose_start() {
  local service variable
  for service in "$@"; do
    variable=$(port_variable "$service")
    mkdir -p "$state/$service"
    echo "${!variable:-$(default_port "$service")}" >"$state/$service/port"
    touch "$state/$service/container"
  done
  compose up --detach --wait "$@" || die 1 "docker compose could not start: $*"
}

compose_stop() {
  compose rm --stop --force --volumes "$@"
  local service
  for service in "$@"; do rm -f "$state/$service/container"; done
}
