// Draws the report from the object in #data. Clients choose all texts from the bus. The page shows them as text, never as markup; they are
// escaped for the chart library, which interprets some tags in labels.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { user: "", key: "", host: "", unit: "messages" };
  const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]/gu;
  const OTHERS = data.keys.length - 1;
  const OTHER_USERS = data.users.length - 1;
  const HOUR_MS = 3600000;

  const byId = (id) => document.getElementById(id);
  const visible = (text) => String(text).replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  const short = (text, most = 34) => {
    const points = [...visible(text)];
    return points.length <= most ? points.join("") : points.slice(0, most - 9).join("") + "…" + points.slice(-8).join("");
  };
  const harmless = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const label = (text, most) => harmless(short(text, most)) || "(empty)";
  const user = (number) => (number < 0 ? "unknown recipient" : data.users[number]);
  const key = (number) => data.keys[number];

  const count = (n) => (n ?? 0).toLocaleString("en-US");
  const scaled = (n, step, units) => {
    let position = 0;
    while (n >= step && position < units.length - 1) { n /= step; position += 1; }
    return (n >= 100 || position === 0 ? Math.round(n) : n.toPrecision(3).replace(/\.?0+$/, "")) + units[position];
  };
  const bytes = (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
  const compact = (n) => scaled(n, 1000, ["", " k", " M", " G"]);
  const amount = (n) => (state.unit === "bytes" ? bytes(n) : compact(n));
  const micros = (n) => (n == null ? "–" : scaled(n, 1000, [" µs", " ms", " s"]));
  const duration = (us) => {
    const [divisor, unit] = us < 12e7 ? [1e6, "s"] : us < 72e8 ? [6e7, "min"] : us < 1728e8 ? [36e8, "h"] : [864e8, "d"];
    return `${(us / divisor).toFixed(unit === "s" ? 0 : 1).replace(/\.0$/, "")} ${unit}`;
  };
  const utc = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ");

  // Indexes of the rows that match the filters. A filter does not apply to a table without its column.
  function chosen(table, userColumns = ["user"]) {
    const passes = (columns, wanted) => {
      const there = columns.map((name) => table[name]).filter((column) => column);
      return wanted === "" || !there.length ? () => true : (row) => there.some((column) => column[row] === Number(wanted));
    };
    const filters = [passes(["host"], state.host), passes(["key"], state.key), passes(userColumns, state.user)];
    return [...Object.values(table)[0].keys()].filter((row) => filters.every((filter) => filter(row)));
  }

  // Sums of a column grouped by another: pairs, largest first.
  function sums(table, rows, by, what) {
    const found = new Map();
    for (const row of rows) found.set(table[by][row], (found.get(table[by][row]) ?? 0) + (table[what][row] ?? 0));
    return [...found].sort((a, b) => b[1] - a[1]);
  }
  const total = (table, rows, what) => rows.reduce((sum, row) => sum + (table[what][row] ?? 0), 0);

  const style = () => {
    const css = getComputedStyle(document.documentElement);
    return Object.fromEntries(["card", "ink", "faint", "line", "accent", "alarm"].map((name) => [name, css.getPropertyValue(`--${name}`).trim()]));
  };
  const COLOURS = ["#3f7fe0", "#e0793b", "#2a9d78", "#c2518c", "#8b73d6", "#c39a1d", "#2fa3b8", "#b5564b", "#6b8f2e", "#5c6bc0"];
  const GREY = "#8a929c";

  function draw(id, traces, layout, height) {
    const box = byId(id);
    if (!traces.length) { charts.clear(box, element("p", "none", "No data.")); return; }
    const s = style();
    const axis = { gridcolor: s.line, zerolinecolor: s.line, linecolor: s.line, automargin: true, fixedrange: true };
    const whole = {
      height, margin: { l: 8, r: 8, t: 8, b: 8 }, paper_bgcolor: s.card, plot_bgcolor: s.card,
      font: { color: s.ink, size: 12, family: "system-ui, sans-serif" }, hoverlabel: { align: "left" },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, traceorder: "normal" }, ...layout,
      xaxis: { ...axis, ...(layout.xaxis ?? {}) }, yaxis: { ...axis, ...(layout.yaxis ?? {}) },
    };
    charts.show(box, traces, whole);
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // A table of cells; a column is [heading, kind, function of a row].
  function list(id, rows, columns, most = 100) {
    const box = byId(id);
    if (!rows.length) { box.replaceChildren(element("p", "none", "No data.")); return; }
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const [heading, kind] of columns) head.append(element("th", kind, heading));
    const body = table.createTBody();
    for (const row of rows.slice(0, most)) {
      const line = body.insertRow();
      for (const [, kind, value] of columns) line.append(element("td", kind, visible(value(row) ?? "–")));
    }
    box.replaceChildren(table);
    if (rows.length > most) box.append(element("p", "faint", `and ${count(rows.length - most)} more`));
  }

  // The largest first, followed by all others, which are not ranked.
  function bars(id, pairs, name, colour, others) {
    const there = pairs.filter(([, value]) => value > 0);
    const named = there.filter(([number]) => number !== others);
    const most = Math.max(...there.map(([, value]) => value));
    const shown = [...named.slice(0, 12), ...there.filter(([number]) => number === others)].reverse();
    if (!shown.length) { draw(id, [], {}, 0); return; }
    const texts = shown.map(([number]) => label(name(number), 26));
    draw(id, [{
      type: "bar", orientation: "h", x: shown.map(([, value]) => value), y: shown.map((_, row) => row),
      text: shown.map(([, value]) => amount(value)), textposition: "outside", cliponaxis: false, marker: { color: shown.map(([number]) => colour(number)) },
      customdata: shown.map(([number, value]) => [label(name(number), 90), state.unit === "bytes" ? bytes(value) : count(value)]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }], {
      // Room after the longest bar for its number.
      xaxis: { showticklabels: false, showgrid: false, zeroline: false, range: [0, most * 1.2] },
      yaxis: { tickvals: shown.map((_, row) => row), ticktext: texts, showgrid: false }, bargap: 0.3,
    }, 22 + 26 * shown.length);
  }

  // A key or user has the same colour in all charts.
  const keyColour = (number) => (number === OTHERS ? GREY : COLOURS[number % COLOURS.length]);
  const userColour = (number) => (number === OTHER_USERS ? GREY : COLOURS[(number + 4) % COLOURS.length]);

  const binTime = (bin) => bin * data.binMinutes * 60000;
  const binDate = (bin) => new Date(binTime(bin)).toISOString();
  const stepWords = () => (data.binMinutes < 60 ? `${data.binMinutes} min` : data.binMinutes < 1440 ? `${data.binMinutes / 60} h` : `${data.binMinutes / 1440} d`);

  // Stacked bars, the largest at the bottom, all others on top. Marks are texts by bin.
  function overTime(id, table, rows, by, what, name, colour, most, height, { others = by === "key" ? OTHERS : -1, marks = new Map() } = {}) {
    const ranked = sums(table, rows, by, what).filter(([number, value]) => value > 0 && number !== others).map(([number]) => number);
    const own = new Set(ranked.slice(0, most));
    const rest = "\0rest";
    const series = new Map();
    let first = Infinity; let last = -Infinity;
    for (const row of rows) {
      if (!table[what][row]) continue;
      const number = own.has(table[by][row]) ? table[by][row] : rest;
      const bin = table.bin[row];
      first = Math.min(first, bin); last = Math.max(last, bin);
      const values = series.get(number) ?? series.set(number, new Map()).get(number);
      values.set(bin, (values.get(bin) ?? 0) + table[what][row]);
    }
    for (const bin of marks.keys()) { first = Math.min(first, bin); last = Math.max(last, bin); }
    const bins = [];
    for (let bin = first; bin <= last; bin += 1) bins.push(bin);
    const order = [...ranked.slice(0, most), ...(series.has(rest) ? [rest] : [])];
    const traces = order.map((number) => ({
      type: "bar", name: number === rest ? "all others" : label(name(number), 44), x: bins.map(binDate),
      y: bins.map((bin) => series.get(number).get(bin) ?? 0), marker: { color: number === rest ? GREY : colour(number), line: { width: 0 } },
      customdata: bins.map((bin) => (state.unit === "bytes" && what === "bytes" ? bytes(series.get(number).get(bin) ?? 0) : count(series.get(number).get(bin) ?? 0))),
      hovertemplate: "%{x|%Y-%m-%d %H:%M}<br>%{customdata}",
    }));
    if (marks.size) traces.push(markers(marks, (bin) => [...series.values()].reduce((sum, values) => sum + (values.get(bin) ?? 0), 0)));
    draw(id, traces, { barmode: "stack", bargap: bins.length > 40 ? 0 : 0.1, yaxis: { tickformat: "~s" }, xaxis: { type: "date" }, showlegend: true }, height);
  }

  // A cross for each bin with a mark, at a height that is a function of the bin.
  function markers(marks, height) {
    const bins = [...marks.keys()].sort((a, b) => a - b);
    return {
      type: "scatter", mode: "markers", name: "losses", x: bins.map(binDate), y: bins.map(height), cliponaxis: false,
      marker: { symbol: "x", size: 10, color: style().alarm, line: { width: 1, color: style().card } },
      customdata: bins.map((bin) => marks.get(bin)), hovertemplate: "%{x|%Y-%m-%d %H:%M}<br>%{customdata}",
    };
  }

  function drawTraffic() {
    const rows = chosen(data.traffic);
    byId("traffic-note").textContent = `Each bar is ${stepWords()}. Times are UTC.`;
    overTime("traffic", data.traffic, rows, "key", state.unit, key, keyColour, 8, innerWidth < 600 ? 420 : 380);
    bars("keys", sums(data.traffic, rows, "key", state.unit), key, keyColour, OTHERS);
    bars("users", sums(data.traffic, rows, "user", state.unit), user, userColour, OTHER_USERS);
  }

  function drawFlows() {
    const table = data.flows;
    const what = state.unit === "bytes" ? "bytes" : "deliveries";
    const rows = chosen(table, ["from", "to"]).filter((row) => table[what][row] > 0);
    // Only a few keys can be distinguished; the others are drawn as one.
    const own = new Set(sums(table, rows, "key", what).map(([number]) => number).filter((number) => number !== OTHERS).slice(0, innerWidth < 600 ? 6 : 12));
    const shownKey = (row) => (own.has(table.key[row]) ? table.key[row] : OTHERS);
    const nodes = new Map();
    const node = (kind, number) => {
      const id = `${kind}${number}`;
      if (!nodes.has(id)) nodes.set(id, { index: nodes.size, kind, number });
      return nodes.get(id).index;
    };
    const links = new Map();
    const link = (from, to, value, colour) => {
      const id = `${from} ${to}`;
      const known = links.get(id) ?? links.set(id, { from, to, value: 0, colour }).get(id);
      known.value += value;
    };
    for (const row of rows) {
      const middle = node("key", shownKey(row));
      link(node("from", table.from[row]), middle, table[what][row], keyColour(shownKey(row)));
      link(middle, node("to", table.to[row]), table[what][row], keyColour(shownKey(row)));
    }
    const named = [...nodes.values()];
    const of = (each) => (each.kind === "key" ? key(each.number) : user(each.number));
    const edges = [...links.values()];
    draw("flows", edges.length ? [{
      type: "sankey", orientation: "h", arrangement: "snap",
      node: {
        label: named.map((each) => label(of(each), innerWidth < 600 ? 17 : 30)), pad: 16, thickness: 14, line: { width: 0 },
        color: named.map((each) => (each.kind === "key" ? keyColour(each.number) : each.number < 0 ? GREY : userColour(each.number))),
        customdata: named.map((each) => label(of(each), 90)), hovertemplate: "%{customdata}<br>%{value:,}<extra></extra>",
      },
      link: {
        source: edges.map((each) => each.from), target: edges.map((each) => each.to), value: edges.map((each) => each.value),
        color: edges.map((each) => each.colour + "55"), hovertemplate: "%{source.customdata} → %{target.customdata}<br>%{value:,}<extra></extra>",
      },
    }] : [], {}, Math.max(260, Math.min(760, 60 + 30 * Math.max(...["from", "key", "to"].map((kind) => named.filter((each) => each.kind === kind).length), 1))));
  }

  // Latency buckets are numbered as in sbus-pipeline(8), and summed over rows.
  const upper = (bucket) => {
    const shift = Math.max(0, Math.floor(bucket / 32) - 1);
    return (bucket - 32 * shift + 1) * 2 ** shift - 1;
  };
  function percentile(histogram, percent, longest) {
    const pairs = [...histogram].sort((a, b) => a[0] - b[0]);
    const rank = Math.ceil(pairs.reduce((sum, [, n]) => sum + n, 0) * percent / 100);
    let seen = 0;
    for (const [bucket, n] of pairs) { seen += n; if (seen >= rank) return Math.min(upper(bucket), longest); }
    return null;
  }
  function commands() {
    const table = data.calls;
    const counted = ["calls", "answered", "errors", "timeouts", "unanswered", "undelivered"];
    const found = new Map();
    // A filter by key applies to calls if it is the key of a command.
    const wanted = state.key === "" ? null : key(Number(state.key));
    for (const row of chosen(table)) {
      const cmd = table.cmd[row];
      if (wanted !== null && wanted !== `rpc/${cmd}`) continue;
      const one = found.get(cmd) ?? found.set(cmd, { cmd, longest: null, histogram: new Map(), ...Object.fromEntries(counted.map((name) => [name, 0])) }).get(cmd);
      for (const name of counted) one[name] += table[name][row];
      for (const [bucket, n] of table.latencies[row]) one.histogram.set(bucket, (one.histogram.get(bucket) ?? 0) + n);
      if (table.latency_max_us[row] !== null) one.longest = Math.max(one.longest ?? 0, table.latency_max_us[row]);
    }
    const all = [...found.values()].sort((a, b) => b.calls - a.calls);
    for (const one of all) for (const percent of [50, 90, 99]) one[`p${percent}`] = percentile(one.histogram, percent, one.longest);
    return all;
  }
  const commandName = (one) => one.cmd ?? "all others";

  function drawCalls(all) {
    const answered = all.filter((one) => one.p50 !== null).slice(0, 12).reverse();
    const colours = { p50: COLOURS[2], p90: COLOURS[5], p99: COLOURS[3] };
    const least = Math.min(...answered.map((one) => one.p50)); const most = Math.max(...answered.map((one) => one.p99));
    // If the range is less than a factor of 100, powers of ten alone would give one or two ticks.
    const steps = most / least < 100 && innerWidth >= 600 ? [1, 2, 5] : [1];
    const ticks = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9].flatMap((power) => steps.map((step) => step * power))
      .filter((tick) => tick * 10 >= least && tick <= most * 10);
    draw("latency", answered.length ? ["p50", "p90", "p99"].map((name) => ({
      type: "scatter", mode: "markers", name, x: answered.map((one) => Math.max(1, one[name])), y: answered.map((_, row) => row),
      marker: { size: 11, color: colours[name], symbol: { p50: "circle", p90: "diamond", p99: "line-ns-open" }[name], line: { width: 3, color: colours[name] } },
      customdata: answered.map((one) => [label(commandName(one), 90), micros(one[name])]), hovertemplate: `%{customdata[0]}<br>${name} %{customdata[1]}<extra></extra>`,
    })) : [], {
      xaxis: { type: "log", tickvals: ticks, ticktext: ticks.map(micros) },
      yaxis: { tickvals: answered.map((_, row) => row), ticktext: answered.map((one) => label(commandName(one), 26)), range: [-0.6, answered.length - 0.4] },
    }, 110 + 26 * answered.length);
    list("calls", all, [
      ["command", "long", commandName], ["calls", "number", (one) => count(one.calls)], ["errors", "number", (one) => count(one.errors)],
      ["timeouts", "number", (one) => count(one.timeouts)], ["unanswered", "number", (one) => count(one.unanswered)],
      ["no service", "number", (one) => count(one.undelivered)], ["p50", "number", (one) => micros(one.p50)], ["p90", "number", (one) => micros(one.p90)],
      ["p99", "number", (one) => micros(one.p99)], ["max", "number", (one) => micros(one.longest)],
    ]);
  }

  const CAUSES = { discarded: "discarded for recipients", lost: "lost by recipients", abandoned: "queued at disconnect", tap_loss: "recorder too slow", gap: "recorder could not write", restart: "recorder not connected" };
  const causeColour = (cause) => ({ discarded: COLOURS[5], lost: COLOURS[1], abandoned: COLOURS[2], tap_loss: COLOURS[3], gap: COLOURS[4], restart: GREY })[cause] ?? GREY;
  const CLASSES = { denial: "denied", quota: "quota exceeded", misbehaviour: "misbehaviour" };

  function drawRefusals() {
    // The record has each loss twice: as a loss notice, and with each message. Only the latter has a key, so it is used with a filter by key.
    const cause = (row) => data.losses.cause[row];
    const lost = chosen(data.losses).filter((row) => cause(row) !== (state.key === "" ? "discarded" : "lost"));
    overTime("losses", data.losses, lost, "cause", "count", (name) => CAUSES[name] ?? name, causeColour, 5, 300);
    const table = data.security;
    const rows = chosen(table);
    const unit = state.unit;
    state.unit = "messages";
    bars("refusals", sums(table, rows, "user", "events"), user, userColour, OTHER_USERS);
    state.unit = unit;
    byId("security-note").textContent = rows.length ? `${count(total(table, rows, "events"))} refusals. Times are UTC.` : "";
    list("security", rows, [
      ["first", "", (row) => utc(table.first[row])], ["last", "", (row) => utc(table.last[row])], ["count", "number", (row) => count(table.events[row])],
      ["user", "", (row) => user(table.user[row])], ["unit", "", (row) => table.unit[row]], ["class", "", (row) => CLASSES[table.class[row]] ?? table.class[row]],
      ["code", "", (row) => table.code[row]], ["key or pattern", "long", (row) => table.what[row]], ["reason", "long", (row) => table.reason[row]],
    ]);
  }

  function drawLists() {
    const units = data.units;
    list("units", chosen(units), [
      ["user", "", (row) => user(units.user[row])], ["unit", "long", (row) => units.unit[row]], ["host", "", (row) => data.hosts[units.host[row]]],
      ["messages", "number", (row) => count(units.messages[row])], ["bytes", "number", (row) => bytes(units.bytes[row] ?? 0)],
      ["connections", "number", (row) => count(units.connections[row])], ["subscriptions", "number", (row) => count(units.subscriptions[row])],
      ["refusals", "number", (row) => count(units.denials[row])], ["lost", "number", (row) => count(units.lost[row])],
    ]);
    const relay = data.relay;
    byId("relay-section").hidden = !relay.attempts.length;
    list("relay", chosen(relay), [
      ["remote host", "number", (row) => relay.twin[row]], ["command", "long", (row) => relay.cmd[row]], ["outcome", "", (row) => relay.outcome[row]],
      ["attempts", "number", (row) => count(relay.attempts[row])], ["retries", "number", (row) => count(relay.retries[row])],
      ["calls", "number", (row) => count(relay.calls[row])], ["max", "number", (row) => micros(relay.longest_us[row])],
    ]);
  }

  const lostWords = (lost, unknown) => [lost ? `${count(lost)} lost` : "", unknown ? `${count(unknown)} losses of an unknown number` : ""].filter(Boolean).join(", ");

  function drawLinks() {
    const [links, times] = [data.links, data.linkTimes];
    const rows = chosen(links); const timed = chosen(times);
    const isHost = (row) => links.peer[row] !== "";
    const seen = `Messages that sbus-link received from other hosts. Each bar is ${stepWords()}; a cross marks losses. Times are UTC.`;
    byId("links-note").textContent = rows.some(isHost) ? seen
      : rows.length ? "sbus-link was running, and there was no other host." : "The record has no state of sbus-link for this period and host.";
    byId("links").hidden = !rows.length;
    byId("link-times").hidden = !rows.some(isHost);
    const lost = new Map();
    for (const row of timed) {
      const [known, unknown] = lost.get(times.bin[row]) ?? [0, 0];
      if (times.lost[row] || times.unknown_losses[row]) lost.set(times.bin[row], [known + times.lost[row], unknown + times.unknown_losses[row]]);
    }
    const others = data.peers.length - 1;
    overTime("link-times", times, timed, "peer", state.unit, (number) => data.peers[number], (number) => COLOURS[(number + 2) % COLOURS.length], 8, innerWidth < 600 ? 360 : 300, {
      others, marks: new Map([...lost].map(([bin, counts]) => [bin, lostWords(...counts)])),
    });
    const ofHost = (name, shown = count) => (row) => (isHost(row) ? shown(links[name][row]) : "–");
    const ofLink = (name, shown = count) => (row) => (isHost(row) ? "–" : shown(links[name][row]));
    const isOneRealm = new Set(links.realm).size < 2;
    const here = (row) => {
      const recorder = data.hosts[links.host[row]];
      return isOneRealm && links.link[row] === recorder ? recorder : `${recorder} (${links.realm[row]}/${links.link[row]})`;
    };
    list("links", rows, [
      ["other host", "", (row) => links.peer[row] === null ? "all others" : links.peer[row] || "link itself"],
      ["this host", "", here],
      ["alive", "number", (row) => duration(links.alive_us[row])], ["messages", "number", ofHost("messages")], ["bytes", "number", ofHost("bytes", bytes)],
      ["lost", "number", ofHost("lost")], ["unknown losses", "number", ofHost("unknown_losses")], ["duplicates", "number", ofHost("duplicates")],
      ["rejected", "number", (row) => count(links.rejected[row])], ["disconnects", "number", (row) => count(links.disconnects[row])],
      ["dropped", "number", ofLink("dropped")], ["max spool", "number", ofLink("spooled_max_bytes", bytes)],
    ]);
  }

  function drawTiles(all) {
    const traffic = chosen(data.traffic); const losses = chosen(data.losses).filter((row) => data.losses.cause[row] === "lost");
    const calls = all.reduce((sum, one) => sum + one.calls, 0);
    const merged = new Map();
    for (const one of all) for (const [bucket, n] of one.histogram) merged.set(bucket, (merged.get(bucket) ?? 0) + n);
    const failed = all.reduce((sum, one) => sum + one.errors + one.timeouts + one.unanswered, 0);
    const lost = total(data.losses, losses, "count"); const refused = total(data.security, chosen(data.security), "events");
    const tiles = [
      ["messages", compact(total(data.traffic, traffic, "messages"))], ["payload", bytes(total(data.traffic, traffic, "bytes"))],
      ["deliveries", compact(total(data.traffic, traffic, "recipients"))], ["users", count(new Set(traffic.map((row) => data.traffic.user[row])).size)],
      ["calls", compact(calls)], ["p99 call latency", micros(percentile(merged, 99, Math.max(...all.map((one) => one.longest ?? 0))))], ["failed calls", compact(failed), failed], ["messages lost", compact(lost), lost], ["refusals", compact(refused), refused],
    ];
    byId("tiles").replaceChildren(...tiles.map(([words, value, alarm]) => {
      const tile = element("div", "tile");
      tile.append(element("b", alarm ? "alarm" : "", value), element("span", "faint", words));
      return tile;
    }));
  }

  function describe() {
    const hosts = data.covers.hosts;
    if (!hosts.length) {
      byId("period").textContent = "No rows were recorded in this period.";
    } else {
      const first = Math.min(...hosts.map((each) => each.first)); const last = Math.max(...hosts.map((each) => each.last));
      const records = hosts.reduce((sum, each) => sum + each.records, 0);
      byId("period").textContent = `${utc(first)} to ${utc(last)} UTC · ${hosts.map((each) => visible(each.host)).join(", ")} · ${count(records)} rows`;
    }
    const { gaps, moreGaps, silent, interruptions, absent, removed, late } = data.covers;
    const sum = (name) => hosts.reduce((all, each) => all + each[name], 0);
    const lines = [];
    if (gaps.length) lines.push(`Periods of whole hours without rows: ${count(gaps.length + moreGaps)}, latest first:`, ...gaps.slice(0, 10).map((gap) => `    ${visible(gap.host)}: ${utc(gap.from)} to ${utc(gap.to)} UTC, ${count((gap.to - gap.from) / HOUR_MS)} h`));
    const stopped = silent.map((each) => `${visible(each.host)}, ${count(each.hours)} h`);
    if (silent.length) lines.push(`Hosts that stopped recording, with the hours from their last row to the last row of all hosts: ${stopped.slice(0, 20).join("; ")}${silent.length > 20 ? ` and ${count(silent.length - 20)} more` : ""}.`);
    if (sum("missing")) lines.push(`${count(sum("missing"))} rows are missing because the recorder was too slow or could not write.`);
    if (interruptions) lines.push(`The recorder was not running or had no connection to the bus: ${count(interruptions)} times. The traffic during these times is unknown.`);
    if (absent) lines.push(`${count(absent)} segments or index entries were missing or damaged and could not be read.`);
    if (removed) lines.push(`${count(removed)} segments were removed before they were read.`);
    if (late) lines.push(`${count(late)} segments arrived after their hour could no longer be recomputed.`);
    const payloads = sum("cut") + sum("leftOut");
    const whole = byId("whole");
    whole.textContent = lines.length ? "Parts of the record are missing. For details see Coverage below." : "Nothing is known to be missing.";
    whole.className = lines.length ? "alarm" : "faint";
    if (payloads) lines.push(`Of ${count(payloads)} payloads, the record has only a part or the length, as configured. The sizes in this report are those of the complete payloads.`);
    byId("missing").replaceChildren(...lines.map((line) => element("p", line.startsWith("Of") ? "faint" : "", line)));
    list("covers", hosts, [
      ["host", "", (each) => each.host], ["from", "", (each) => utc(each.first)], ["to", "", (each) => utc(each.last)], ["hours", "number", (each) => count(each.hours)],
      ["rows", "number", (each) => count(each.records)], ["rows missing", "number", (each) => count(each.missing)],
      ["payloads truncated", "number", (each) => count(each.cut)], ["payloads omitted", "number", (each) => count(each.leftOut)],
    ]);
    byId("made").textContent = `Created ${utc(data.made)} UTC by sbusctl report.`;
  }

  function fill(id, names, all) {
    const select = byId(id);
    select.append(new Option(all, ""));
    names.forEach((name, number) => select.append(new Option(short(name, 40) || "(empty)", String(number))));
    select.addEventListener("change", () => { state[id] = select.value; redraw(); });
  }

  function redraw() {
    byId("clear").disabled = !(state.user || state.key || state.host);
    const all = commands();
    drawTiles(all);
    drawTraffic();
    drawFlows();
    drawCalls(all);
    drawRefusals();
    drawLists();
    drawLinks();
    charts.flush();
  }

  fill("user", data.users, "all users");
  fill("key", data.keys, "all keys");
  fill("host", data.hosts, "all hosts");
  byId("unit").addEventListener("change", () => { state.unit = byId("unit").value; redraw(); });
  byId("clear").addEventListener("click", () => {
    for (const id of ["user", "key", "host"]) { state[id] = ""; byId(id).value = ""; }
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  describe();
  redraw();
  charts.start();
})();
