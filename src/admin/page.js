// Shows the answers of the admin API (docs/metrics.md), and asks again every 5 seconds: not while
// the tab is hidden, text is selected or a field has the focus. Texts of requests become text
// nodes only, and characters that do not show as themselves are written as numbers.
"use strict";
const EVERY = 5000;
const STAGES = {
  body: "its client: the body", store: "the store", "older-in-flight": "older requests:", connection: "a connection upstream",
  upstream: "the upstream", response: "the rest of the response",
};
const ROWS = 50;
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const key = new URLSearchParams(location.search).get("key");
const byId = (id) => document.getElementById(id);

function shown(value) {
  if (value === null || value === undefined) return "-";
  return String(value).replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children.map((child) => (child instanceof Node ? child : shown(child))));
  return made;
}

const word = (look, text) => element("span", { class: `word ${look}` }, text);
const time = (text) => element("time", { title: shown(text) }, text.slice(0, 19).replace("T", " "));
const long = (text) => element("span", { class: "long", title: shown(text) }, text);
const link = (resource) => resource === null ? "-" : element("a",
  { class: "long", title: shown(resource), href: "/resource?key=" + encodeURIComponent(resource) }, resource);

function span(seconds) {
  if (seconds === null) return "-";
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]].map(([size, unit]) => {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    return count > 0 ? count + unit : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** `columns` makes an object of a row: the headings and their values. Numbers go to the right. */
function table(title, none, rows, columns, more, look = "") {
  const heading = element("h2", {}, title);
  if (rows.length === 0) return [heading, element("p", { class: "none" }, none)];
  const cells = rows.slice(0, ROWS).map((row) => Object.entries(columns(row)));
  const cell = (name, value, text) => element(name, typeof value === "number" ? { class: "num" } : {}, text);
  const head = cells[0].map(([name, value]) => cell("th", value, name));
  const body = cells.map((row) => element("tr", {}, ...row.map(([, value]) => cell("td", value, value))));
  const whole = element("table", { class: look }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  const parts = [heading, element("div", { class: "scroll", tabindex: "0" }, whole)];
  if (more || rows.length > ROWS) parts.push(element("p", { class: "soft" }, "There are more: fencepost status lists them."));
  return parts;
}

function facts(values) {
  const one = ([name, value]) => element("div", {}, element("dt", {}, name),
    element("dd", typeof value === "number" ? {} : { class: "text" }, value));
  return element("dl", { class: "facts" }, ...Object.entries(values).map(one));
}

const settling = (unknown) => ({
  id: unknown.id, token: unknown.token,
  "settles in": unknown.settles_in_seconds === null ? "its instance decides" : span(unknown.settles_in_seconds),
  instance: unknown.instance, note: unknown.inherited ? "inherited" : "",
});

/** The first five columns fit on a telephone. */
const rejection = (one) => ({
  at: time(one.at), outcome: word("warn", one.outcome), ...(key === null && { resource: link(one.resource) }),
  token: one.token, mark: one.mark, times: one.times, "first at": time(one.first_at), status: one.status, client: one.client, method: one.method,
  path: one.path === null ? "-" : long(one.path), "request id": one.request_id,
});

/** The answers to the first questions of the person on call. */
function verdict(status) {
  const lax = status.routes.filter((route) => route.mode !== "enforce");
  const [all, enforced] = [status.routes.length, status.routes.length - lax.length];
  const notOn = lax.map((route) => `${route.route} (${route.mode})`).join(", ");
  const lines = [];
  if (enforced === 0) lines.push(["bad", "No route enforces: every stale write passes."]);
  else if (enforced === all) lines.push(["good", "Enforcing on all routes."]);
  else lines.push(["warn", `Enforcing on ${enforced} of ${all} routes. Not on: ${notOn}.`]);
  const why = status.store_error ?? "no attempt has ended yet";
  if (status.store === "up") lines.push(["good", "The store answers."]);
  else lines.push(["bad", `The store ${status.store === "down" ? "is down" : "was never reached since the start"}: ${why}`]);
  if (!status.ready) lines.push(["bad", `Not ready: ${status.not_ready_because.join("; ")}`]);
  for (const hint of status.hints) lines.push(["bad", hint]);
  if (status.reload_error !== null) {
    lines.push(["bad", `The reload at ${status.reload_failed} failed, and the configuration is as before: ${status.reload_error}`]);
  }
  if (status.state === "draining") lines.push(["warn", "Draining: no new requests are taken."]);
  if (status.unknown > 0) {
    lines.push(["warn", `Unknown outcomes: ${status.unknown}. Newer tokens of their resources wait until they settle.`]);
  }
  if (status.operations_unknown > 0) {
    lines.push(["warn", `Operations with an outcome that nobody knows: ${status.operations_unknown}. fencepost operations list names them.`]);
  }
  const others = status.other_route_tables;
  if (others.length > 0) lines.push(["warn", `Other routes are served by: ${others.join(", ")}`]);
  return lines.map(([look, text]) => element("div", { class: `verdict ${look}` }, element("p", {}, text)));
}

async function overview(status) {
  const lists = ["requests", "waiting?limit=50", "unknown?limit=50", "rejections?limit=20", "instances"];
  const [active, waiting, unknown, refused, instances] = await Promise.all(lists.map(ask));
  const outcomes = Object.entries(status.requests).sort((one, two) => two[1] - one[1]);
  const open = unknown.open.flatMap((busy) => busy.unknown.map((one) => ({ resource: busy.resource, ...one })));
  return [
    ...verdict(status),
    facts({
      "in flight": status.in_flight, waiting: status.waiting, unknown: status.unknown,
      "lease left": span(status.lease_remaining_seconds), "up for": span(status.uptime_seconds),
    }),
    ...table(`Oldest of ${active.total} requests in progress`, "None is in progress.", active.requests, (one) => ({
      age: span(one.age_seconds), "waits for": STAGES[one.waits_for] + one.older.map((token) => ` ${token}`), "ends in": span(one.ends_in_seconds),
      method: one.method, route: one.route, resource: link(one.resource), token: one.token, client: one.client, "request id": one.request_id,
    })),
    ...table("How requests ended", "No request has ended since the start.", outcomes, ([outcome, count]) => ({
      outcome, "last minute": status.requests_last_minute[outcome] ?? 0, "since the start": count,
    })),
    ...table("Waiting for older requests", "Nothing waits.", waiting.waiting, (busy) => ({
      resource: link(busy.resource), waiting: busy.waiting, "in flight": busy.in_flight, unknown: busy.unknown.length,
      "settles in": span(busy.unknown.reduce((most, { settles_in_seconds: one }) => (one > most ? one : most), null)),
    }), waiting.next),
    ...table("Unknown outcomes", "No outcome is unknown.", open,
      (one) => ({ resource: link(one.resource), ...settling(one) }), unknown.next),
    ...table("Latest refusals", "Nothing was refused since the start.", refused.rejections, rejection, false, "refusals"),
    ...table("Routes", "There are no routes.", status.routes, (route) => ({
      route: route.route, path: route.path, mode: word(route.mode === "enforce" ? "good" : "warn", route.mode), key: route.resource,
    })),
    ...table("Instances", "None is known.", instances.instances, (instance) => ({
      id: instance.id, state: word(instance.state === "dead" ? "bad" : "good", instance.state),
      "silent for": span(instance.silent_seconds), "settles in": span(instance.settles_in_seconds),
    })),
  ];
}

async function resource() {
  const heading = element("h2", {}, "Resource ", element("code", {}, key));
  let mark;
  try {
    mark = await ask("marks/" + encodeURIComponent(key));
  } catch (error) {
    if (![400, 404].includes(error.status)) throw error;
    return [heading, element("p", { class: "none" }, error.message)];
  }
  return [
    heading,
    facts({
      mark: mark.mark + (mark.spent ? " spent" : ""), since: mark.since, "in flight": mark.in_flight, waiting: mark.waiting,
    }),
    ...table("Unknown outcomes", "None.", mark.unknown, settling),
    ...table("Open epochs", "None.", mark.epochs, ({ token, instance, number }) => ({ token, instance, number })),
    ...table("Latest refusals", "None is remembered.", mark.rejections, rejection),
    ...table("Latest unknown outcomes", "None is remembered.", mark.latest_unknown, rejection),
    ...table("Operator actions", "None.", mark.audit,
      ({ at, action, before, after, actor, reason }) => ({ at: time(at), action, before, after, actor, reason })),
  ];
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await fetch(`/v1/${path}`, { cache: "no-store", headers });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  // 421: the page was opened by a name; a token makes up for that.
  byId("login").hidden = ![401, 421].includes(answer.status);
  throw Object.assign(new Error(body.detail ?? `status ${answer.status}`), { status: answer.status });
}

async function refresh() {
  try {
    const status = await ask("status");
    const parts = await (key === null ? overview(status) : resource());
    byId("instance").textContent = shown(`namespace ${status.namespace}, instance ${status.instance}, version ${status.version}`);
    byId("login").hidden = true;
    document.querySelector("main").replaceChildren(...parts);
    byId("refreshed").textContent = `State of this instance at ${new Date().toLocaleTimeString()}.`;
    document.body.classList.remove("stale");
  } catch (error) {
    byId("refreshed").textContent = `Not refreshed: ${shown(error.message)}`;
    document.body.classList.add("stale");
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", event.target.querySelector("input").value);
  refresh();
});
if (key !== null) {
  document.title = `${shown(key)} · fencepost`;
  document.querySelector("[name=key]").value = key;
}
async function follow() {
  const busy = document.hidden || String(getSelection()) !== "" || document.activeElement instanceof HTMLInputElement;
  if (!busy) await refresh();
  setTimeout(follow, EVERY);
}
refresh().then(() => setTimeout(follow, EVERY));
