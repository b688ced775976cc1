# Kafka, one node, from its Maven artifacts. Sourced, not run.
# shellcheck shell=bash
# shellcheck disable=SC2154  # what is used here is set in lib.sh

kafka_libs=$cache/kafka-$kafka_version

kafka_prepare() {
  local download
  ensure_java 17
  [[ -d $kafka_libs ]] && return
  say "kafka: downloading version $kafka_version"
  download=$(mktemp -d "$cache/kafka.XXXXXX")
  maven_goal dependency:copy-dependencies "-DoutputDirectory=$download"
  mv "$download" "$kafka_libs"
}

kafka_start() {
  local home=$state/kafka port controller_port
  rm -rf "$home"
  mkdir -p "$home"
  port=$(choose_port kafka)
  controller_port=$(choose_port controller)
  sed -e "s|@PORT@|$port|g" -e "s|@CONTROLLER_PORT@|$controller_port|g" -e "s|@DATA@|$home/data|g" \
    "$services_dir/kafka.properties" >"$home/server.properties"
  echo "$port" >"$home/port"
  kafka_java -Xmx256m kafka.tools.StorageTool format --cluster-id "$(kafka_tool_cluster_id)" \
    --config "$home/server.properties" >"$home/format.log" 2>&1 || {
    cat "$home/format.log" >&2
    die 1 "kafka: could not format its data directory"
  }
  # Many small topics mean many open files.
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  spawn kafka java "$(marker_of kafka)" -Xmx1g -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -Dorg.slf4j.simpleLogger.showDateTime=true -cp "$kafka_libs/*" kafka.Kafka "$home/server.properties"
}

kafka_java() { java -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$kafka_libs/*" "$@"; }

# Another id each time: a cluster that was made anew must not look like the old one.
kafka_tool_cluster_id() { kafka_java -Xmx64m kafka.tools.StorageTool random-uuid; }

kafka_is_alive() { process_is_ours kafka; }

# A listing shows that the broker is registered and answers requests, which an open port does not.
kafka_answers() {
  local address
  address=$(address_of kafka)
  port_answers "${address##*:}" || return 1
  kafka_java -Xmx128m org.apache.kafka.tools.TopicCommand --bootstrap-server "$address" --list \
    >/dev/null 2>>"$state/kafka/ready.log"
}

kafka_stop() {
  stop_process kafka
  rm -rf "$state/kafka/data" "$state/kafka/pid"
}
