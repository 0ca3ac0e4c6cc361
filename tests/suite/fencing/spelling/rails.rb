# What Rails acts on: lines of hex in (a request target), lines of hex out, a column per way to write its routes.
require "logger"
require "stringio"
require "action_controller"
require "action_dispatch"

ACT = lambda do |env|
  [200, {}, [env["action_dispatch.request.path_parameters"][:id].to_s]]
end

def routes(&block)
  set = ActionDispatch::Routing::RouteSet.new
  set.draw(&block)
  set
end

WAYS = [
  routes { put "things/:id", to: ACT },
  routes { put "things/:id", to: ACT, constraints: { format: /json|xml/ } },
].freeze

STDIN.each_line do |line|
  raw = [line.strip].pack("H*").split("?", 2).first.to_s.split("#", 2).first.to_s
  columns = WAYS.map do |way|
    # As Puma hands a path on.
    env = {
      "REQUEST_METHOD" => "PUT", "PATH_INFO" => raw.dup, "SCRIPT_NAME" => "", "QUERY_STRING" => "",
      "SERVER_NAME" => "app.test", "SERVER_PORT" => "80", "rack.url_scheme" => "http",
      "rack.input" => StringIO.new
    }
    status, _, body = way.call(env)
    status == 200 ? "=" + body.first.unpack1("H*") : "-"
  rescue StandardError
    "-"
  end
  puts columns.join(" ")
end
