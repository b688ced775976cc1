# The schema registry: Apicurio with the Confluent-compatible interface, in memory. Sourced, not run.
# shellcheck shell=bash
# shellcheck disable=SC2154  # what is used here is set in lib.sh

registry_home=$cache/apicurio-registry-$registry_version

registry_prepare() {
  local download
  ensure_java 17
  [[ -d $registry_home ]] && return
  say "registry: downloading version $registry_version"
  download=$(mktemp -d "$cache/registry.XXXXXX")
  maven_goal dependency:copy "-DoutputDirectory=$download" \
    "-Dartifact=io.apicurio:apicurio-registry-app:$registry_version:tar.gz:all"
  tar -xzf "$download"/*.tar.gz -C "$download"
  rm "$download"/*.tar.gz
  mv "$download" "$registry_home"
}

registry_start() {
  local home=$state/registry port
  rm -rf "$home"
  mkdir -p "$home"
  port=$(choose_port registry)
  echo "$port" >"$home/port"
  spawn registry java "$(marker_of registry)" -Xmx512m -Dquarkus.http.host=127.0.0.1 "-Dquarkus.http.port=$port" \
    -jar "$registry_home/apicurio-registry-app-$registry_version-runner.jar"
}

registry_is_alive() { process_is_ours registry; }

registry_answers() { [[ $(http_status "$(cat "$state/registry/port")" /apis/ccompat/v7/subjects) == 200 ]]; }

registry_stop() {
  stop_process registry
  rm -f "$state/registry/pid"
}
