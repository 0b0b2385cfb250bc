// Draws the report from the object in #data. Clients choose all texts from the bus. The page shows them as text, never as markup; they are
// escaped for the chart library, which interprets some tags in labels.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { user: "", key: "", host: "", unit: "messages" };
  const OTHERS = data.keys.length - 1;
  const OTHER_USERS = data.users.length - 1;
  const HOUR_MS = 3600000;
  const MOST_LINKS = 30; // with more, a reader cannot follow one

  const byId = (id) => document.getElementById(id);
  const { visible, short, label, count, many, bytes, compact, micros, duration, utc } = text;
  const { element, number } = tables;
  const user = (number) => (number < 0 ? "unknown recipient" : data.users[number]);
  const key = (number) => data.keys[number];

  const hostName = (place) => data.hosts[place] ?? "all others";
  const amount = (n) => (state.unit === "bytes" ? bytes(n) : compact(n));
  const isNarrow = () => innerWidth < 600 && !document.documentElement.dataset.paper;

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

  // An axis of whole bins, at least twelve, so that a single bar is between whole minutes or hours; midnight has its date.
  const TICK_MINUTES = [1, 5, 10, 30, 60, 180, 360, 720, 1440, 2880, 10080, 20160, 43200, 86400, 259200, 525600];
  function timeAxis(first, last) {
    const missing = Math.max(0, 12 - (last - first + 1));
    const [from, to] = [first - Math.floor(missing / 2), last + 1 + Math.ceil(missing / 2)].map(binTime);
    const step = 60000 * (TICK_MINUTES.find((minutes) => minutes >= data.binMinutes && (to - from) / (minutes * 60000) <= (isNarrow() ? 4 : 9)) ?? TICK_MINUTES.at(-1));
    const ticks = [];
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
    const clock = (tick) => utc(tick).slice(11); const day = (tick) => utc(tick).slice(0, 10);
    const dated = ticks[0] === from && ticks.length > 1 ? 1 : 0; // the edge has no room for a date
    const words = ticks.map((tick, place) => {
      if (step >= 86400000) return day(tick);
      return place === dated || day(tick) !== day(ticks[Math.max(0, place - 1)]) ? `${clock(tick)}<br>${day(tick)}` : clock(tick);
    });
    return { type: "date", range: [from, to].map((ms) => new Date(ms).toISOString()), tickvals: ticks.map((ms) => new Date(ms).toISOString()), ticktext: words, ticks: "outside" };
  }

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
      type: "bar", name: number === rest ? "all others" : label(name(number), 44), x: bins.map(binDate), offset: 0, width: binTime(1) * (bins.length > 40 ? 1 : 0.9),
      y: bins.map((bin) => series.get(number).get(bin) ?? 0), marker: { color: number === rest ? GREY : colour(number), line: { width: 0 } },
      customdata: bins.map((bin) => (state.unit === "bytes" && what === "bytes" ? bytes(series.get(number).get(bin) ?? 0) : count(series.get(number).get(bin) ?? 0))),
      hovertemplate: "%{x|%Y-%m-%d %H:%M}<br>%{customdata}",
    }));
    if (marks.size) traces.push(markers(marks, (bin) => [...series.values()].reduce((sum, values) => sum + (values.get(bin) ?? 0), 0)));
    draw(id, traces, { barmode: "stack", yaxis: { tickformat: "~s", rangemode: "tozero" }, xaxis: bins.length ? timeAxis(first, last) : {}, showlegend: true }, height);
  }

  // A cross for each bin with a mark, at a height that is a function of the bin.
  function markers(marks, height) {
    const bins = [...marks.keys()].sort((a, b) => a - b);
    return {
      type: "scatter", mode: "markers", name: "losses", x: bins.map((bin) => binDate(bin + 0.45)), y: bins.map(height), cliponaxis: false,
      marker: { symbol: "x", size: 10, color: style().alarm, line: { width: 1, color: style().card } },
      customdata: bins.map((bin) => marks.get(bin)), hovertemplate: "%{customdata}",
    };
  }

  function drawTraffic() {
    const rows = chosen(data.traffic);
    byId("traffic-note").textContent = `Each bar is ${stepWords()}. Times are UTC.`;
    overTime("traffic", data.traffic, rows, "key", state.unit, key, keyColour, 8, isNarrow() ? 420 : 380);
    drawTrafficTable(rows);
    bars("keys", sums(data.traffic, rows, "key", state.unit), key, keyColour, OTHERS);
    bars("users", sums(data.traffic, rows, "user", state.unit), user, userColour, OTHER_USERS);
  }

  function drawTrafficTable(rows) {
    const table = data.traffic;
    const names = ["messages", "bytes", "recipients", "undeliverable"];
    const found = new Map();
    for (const row of rows) {
      const id = `${table.key[row]} ${table.user[row]}`;
      const one = found.get(id) ?? found.set(id, { key: table.key[row], user: table.user[row], messages: 0, bytes: 0, recipients: 0, undeliverable: 0 }).get(id);
      for (const name of names) one[name] += table[name][row] ?? 0;
    }
    tables.show("traffic-table", [...found.values()].sort((a, b) => b[state.unit] - a[state.unit]), [
      ["key", "long", (one) => key(one.key)], ["publisher", "", (one) => user(one.user)], number("messages", (one) => one.messages), number("bytes", (one) => one.bytes, bytes),
      number("deliveries", (one) => one.recipients), number("no recipient", (one) => one.undeliverable),
    ]);
  }

  function drawFlows() {
    const table = data.flows;
    const what = state.unit === "bytes" ? "bytes" : "deliveries";
    const rows = chosen(table, ["from", "to"]).filter((row) => table[what][row] > 0);
    const all = rows.map((row) => ({ from: table.from[row], key: table.key[row], to: table.to[row], value: table[what][row] }));
    const { links, total: known, folded } = flows.fold(all, MOST_LINKS, { from: OTHER_USERS, key: OTHERS, to: OTHER_USERS });
    const names = [...new Set(links.flatMap((link) => [link.from, link.to]))];
    const ends = names.map((name) => {
      const [kind, place] = name.split(":");
      if (place === flows.OTHERS) return { kind, name: { from: "other publishers", key: "other keys", to: "other recipients" }[kind], colour: GREY };
      return kind === "key" ? { kind, name: key(place), colour: keyColour(Number(place)) } : { kind, name: user(Number(place)), colour: place < 0 ? GREY : userColour(Number(place)) };
    });
    byId("flows-note").textContent = "Publisher (left), key (middle) and recipient (right), derived from the subscriptions in the record."
      + (folded ? ` ${count(folded)} of ${count(known)} links are folded into others.` : "");
    draw("flows", links.length ? [{
      type: "sankey", orientation: "h", arrangement: "snap",
      node: {
        label: ends.map((end) => label(end.name, isNarrow() ? 17 : 30)), pad: 16, thickness: 14, line: { width: 0 }, color: ends.map((end) => end.colour),
        customdata: ends.map((end) => label(end.name, 90)), hovertemplate: "%{customdata}<br>%{value:,}<extra></extra>",
      },
      link: {
        source: links.map((link) => names.indexOf(link.from)), target: links.map((link) => names.indexOf(link.to)), value: links.map((link) => link.value),
        color: links.map((link) => (link.key === flows.OTHERS ? GREY : keyColour(Number(link.key))) + "55"), hovertemplate: "%{source.customdata} → %{target.customdata}<br>%{value:,}<extra></extra>",
      },
    }] : [], {}, Math.max(260, Math.min(640, 60 + 34 * Math.max(...["from", "key", "to"].map((kind) => ends.filter((end) => end.kind === kind).length), 1))));
    const shown = rows.sort((a, b) => table[what][b] - table[what][a]);
    tables.show("flows-table", shown, [
      ["publisher", "", (row) => user(table.from[row])], ["key", "long", (row) => key(table.key[row])], ["recipient", "", (row) => user(table.to[row])],
      ["host", "", (row) => hostName(table.host[row])], number("deliveries", (row) => table.deliveries[row]), number("bytes", (row) => table.bytes[row], bytes),
    ]);
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
    for (const [bucket, n] of pairs) { seen += n; if (seen >= rank) return Math.min(upper(bucket), longest ?? Infinity); }
    return null;
  }
  function commands(table = data.calls) {
    const counted = ["calls", "answered", "errors", "timeouts", "unanswered", "undelivered"];
    const found = new Map();
    // A filter by key applies to calls if it is the key of a command.
    const wanted = state.key === "" ? null : key(Number(state.key));
    for (const row of chosen(table)) {
      const cmd = table.cmd[row];
      if (wanted !== null && wanted !== `rpc/${cmd}`) continue;
      const one = found.get(cmd) ?? found.set(cmd, { cmd, longest: null, histogram: new Map(), ...Object.fromEntries(counted.map((name) => [name, 0])) }).get(cmd);
      for (const name of counted) one[name] += table[name][row];
      const packed = table.latencies[row]; // the distance of each bucket from the one before, and its count
      for (let place = 0, bucket = 0; place < packed.length; place += 2) {
        bucket += packed[place];
        one.histogram.set(bucket, (one.histogram.get(bucket) ?? 0) + packed[place + 1]);
      }
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
    const steps = most / least < (isNarrow() ? 10 : 100) ? [1, 2, 5] : [1];
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
    tables.show("calls", all, [
      ["command", "long", commandName], number("calls", (one) => one.calls), number("errors", (one) => one.errors), number("timeouts", (one) => one.timeouts),
      number("unanswered", (one) => one.unanswered), number("no service", (one) => one.undelivered), number("p50", (one) => one.p50, micros),
      number("p90", (one) => one.p90, micros), number("p99", (one) => one.p99, micros), number("max", (one) => one.longest, micros),
    ]);
  }

  const CAUSES = { discarded: "discarded for recipients", lost: "lost by recipients", abandoned: "queued at disconnect", tap_loss: "recorder too slow", gap: "recorder could not write", restart: "recorder not connected" };
  const causeColour = (cause) => ({ discarded: COLOURS[5], lost: COLOURS[1], abandoned: COLOURS[2], tap_loss: COLOURS[3], gap: COLOURS[4], restart: GREY })[cause] ?? GREY;
  const CLASSES = { denial: "denied", quota: "quota exceeded", misbehaviour: "misbehaviour" };

  function drawRefusals() {
    // The record has each loss twice: as a loss notice, and with each message. Only the latter has a key, so it is used with a filter by key.
    const cause = (row) => data.losses.cause[row];
    const lost = chosen(data.losses).filter((row) => cause(row) !== (state.key === "" ? "discarded" : "lost"));
    drawLosses(lost);
    overTime("losses", data.losses, lost, "cause", "count", (name) => CAUSES[name] ?? name, causeColour, 5, 300);
    const table = data.security;
    const rows = chosen(table);
    const unit = state.unit;
    state.unit = "messages";
    bars("refusals", sums(table, rows, "user", "events"), user, userColour, OTHER_USERS);
    state.unit = unit;
    byId("security-note").textContent = rows.length ? `${many(total(table, rows, "events"), "refusal")}. Times are UTC.` : "";
    tables.show("security", rows, [
      ["user", "who", (row) => user(table.user[row])], ["key or pattern", "long", (row) => table.what[row]], number("count", (row) => table.events[row]),
      ["class", "", (row) => CLASSES[table.class[row]] ?? table.class[row]], ["reason", "long", (row) => table.reason[row]], ["code", "", (row) => table.code[row]],
      ["unit", "", (row) => table.unit[row]], ["host", "", (row) => hostName(table.host[row])], ["first", "time", (row) => utc(table.first[row])], ["last", "time", (row) => utc(table.last[row])],
    ]);
  }

  // Losses of each user, key and host, with the first and the last bin that has any.
  function drawLosses(rows) {
    const table = data.losses;
    const found = new Map();
    for (const row of rows) {
      const id = ["cause", "user", "key", "host"].map((name) => table[name][row]).join(" ");
      const one = found.get(id) ?? found.set(id, { row, events: 0, count: 0, time: 0, first: Infinity, last: -Infinity }).get(id);
      one.events += table.events[row]; one.count += table.count[row] ?? 0; one.time += table.duration_us[row] ?? 0;
      one.first = Math.min(one.first, table.bin[row]); one.last = Math.max(one.last, table.bin[row]);
    }
    tables.show("losses-table", [...found.values()].sort((a, b) => b.count - a.count), [
      ["user", "who", (one) => (table.user[one.row] < 0 ? null : user(table.user[one.row]))], ["cause", "", (one) => CAUSES[table.cause[one.row]] ?? table.cause[one.row]],
      ["key", "long", (one) => (table.key[one.row] < 0 ? null : key(table.key[one.row]))], ["host", "", (one) => hostName(table.host[one.row])],
      number("lost", (one) => one.count), number("events", (one) => one.events), number("not recorded", (one) => one.time, (us) => (us ? duration(us) : "–")),
      ["from", "time", (one) => utc(binTime(one.first))], ["to", "time", (one) => utc(binTime(one.last + 1))],
    ]);
  }

  function drawLists() {
    const units = data.units;
    tables.show("units", chosen(units), [
      ["user", "who", (row) => user(units.user[row])], ["unit", "long", (row) => units.unit[row]], ["host", "", (row) => hostName(units.host[row])],
      number("messages", (row) => units.messages[row]), number("bytes", (row) => units.bytes[row] ?? 0, bytes),
      number("connections", (row) => units.connections[row]), number("subscriptions", (row) => units.subscriptions[row]),
      number("refusals", (row) => units.denials[row]), number("lost", (row) => units.lost[row]),
    ], data.omitted.units);
    const ends = data.disconnects;
    tables.show("disconnects", chosen(ends), [
      ["user", "who", (row) => user(ends.user[row])], ["unit", "long", (row) => ends.unit[row]], ["host", "", (row) => hostName(ends.host[row])],
      ["error", "", (row) => ends.code[row]], ["reason", "long", (row) => ends.reason[row]],
      number("disconnects", (row) => ends.disconnects[row]), number("abandoned", (row) => ends.abandoned[row]),
    ], data.omitted.disconnects);
    const relay = data.relay;
    byId("relay-section").hidden = !relay.attempts.length;
    tables.show("relay", chosen(relay), [
      ["remote host", "number", (row) => relay.twin[row]], ["command", "long", (row) => relay.cmd[row]], ["outcome", "", (row) => relay.outcome[row]],
      number("attempts", (row) => relay.attempts[row]), number("retries", (row) => relay.retries[row]),
      number("calls", (row) => relay.calls[row]), number("max", (row) => relay.longest_us[row], micros),
    ], data.omitted.relay);
  }

  const lostWords = (lost, unknown) => [lost ? `${count(lost)} lost` : "", unknown ? `an unknown number lost ${many(unknown, "time")}` : ""].filter(Boolean).join(", ");

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
    overTime("link-times", times, timed, "peer", state.unit, (number) => data.peers[number], (number) => COLOURS[(number + 2) % COLOURS.length], 8, isNarrow() ? 360 : 300, {
      others, marks: new Map([...lost].map(([bin, counts]) => [bin, lostWords(...counts)])),
    });
    const unless = (isNone, heading, name, shown) => number(heading, (row) => (isNone(row) ? null : links[name][row]), (n) => (n === null ? "–" : shown(n)));
    const ofHost = (heading, name, shown = count) => unless((row) => !isHost(row), heading, name, shown);
    const ofLink = (heading, name, shown = count) => unless(isHost, heading, name, shown);
    const isOneRealm = new Set(links.realm).size < 2;
    const here = (row) => {
      const recorder = hostName(links.host[row]);
      return isOneRealm && links.link[row] === recorder ? recorder : `${recorder} (${links.realm[row]}/${links.link[row]})`;
    };
    tables.show("links", rows, [
      ["other host", "who", (row) => links.peer[row] === null ? "all others" : links.peer[row] || "link itself"],
      ["this host", "", here],
      number("alive", (row) => links.alive_us[row], duration), ofHost("messages", "messages"), ofHost("bytes", "bytes", bytes),
      ofHost("lost", "lost"), ofHost("unknown losses", "unknown_losses"), ofHost("duplicates", "duplicates"),
      number("rejected", (row) => links.rejected[row]), number("disconnects", (row) => links.disconnects[row]),
      ofLink("dropped", "dropped"), ofLink("max spool", "spooled_max_bytes", bytes),
    ], data.omitted.links);
  }

  // The numbers of the tiles, from the tables of this period or an earlier one.
  function numbersOf(source) {
    const all = commands(source.calls);
    const traffic = chosen(source.traffic);
    // As in drawRefusals: only losses by cause "discarded" have a key.
    const cause = state.key === "" ? "lost" : "discarded";
    const losses = chosen(source.losses).filter((row) => source.losses.cause[row] === cause);
    const merged = new Map();
    for (const one of all) for (const [bucket, n] of one.histogram) merged.set(bucket, (merged.get(bucket) ?? 0) + n);
    const failed = (one) => one.errors + one.timeouts + (one.cmd === "recorder/close" ? 0 : one.unanswered);
    return {
      messages: total(source.traffic, traffic, "messages"), bytes: total(source.traffic, traffic, "bytes"), deliveries: total(source.traffic, traffic, "recipients"),
      users: new Set(traffic.map((row) => source.traffic.user[row])).size, calls: all.reduce((sum, one) => sum + one.calls, 0),
      p99: percentile(merged, 99, all.reduce((most, one) => Math.max(most, one.longest ?? 0), 0)), failed: all.reduce((sum, one) => sum + failed(one), 0),
      lost: total(source.losses, losses, "count"), refused: total(source.security, chosen(source.security), "events"),
      isOneUser: state.user !== "",
    };
  }

  function drawTiles() {
    const isOneHost = state.host !== "";
    const before = data.before.map((period) => {
      const there = period.there && isOneHost ? period.hostHours[Number(state.host)] : period.there;
      return { name: period.name, there, length: data.hours.length, numbers: there ? numbersOf(period) : null };
    });
    tiles.show(byId("tiles"), numbersOf(data), before);
    byId("compared").textContent = tiles.note(data, before, isOneHost ? " of the host" : "");
    const named = [["user", user], ["key", key], ["host", hostName]].filter(([name]) => state[name] !== "").map(([name, words]) => `${name} ${visible(words(Number(state[name])))}`);
    byId("filtered").textContent = named.length ? `Only ${named.join(", ")}.` : "";
  }

  function drawHosts() {
    const { rows, more, moreProblems } = data.hostList;
    const isKnown = (each) => data.hosts[each.number] === each.host && each.last !== null;
    const select = (each) => () => { state.host = String(each.number); byId("host").value = state.host; redraw(); };
    byId("hosts-note").textContent = `Worst first: hosts that stopped recording, then by failed calls, lost messages, refusals and missing rows. Times are UTC.`
      + (rows.some(isKnown) ? " Select a host to see only its data." : "");
    tables.show("hosts", rows, [
      ["host", "who", (each) => each.host, null, (each) => (isKnown(each) ? select(each) : null)],
      ["silent", "silent", (each) => (each.silent ? `for ${many(each.silent, "hour")}` : null), (each) => each.silent], ["last row", "time", (each) => (each.last === null ? "before the period" : utc(each.last))],
      number("messages", (each) => each.messages), number("calls", (each) => each.calls), number("failed calls", (each) => each.failed), number("lost", (each) => each.lost),
      number("refusals", (each) => each.refused), number("rows missing", (each) => each.missing),
    ]);
    byId("hosts-more").textContent = more ? `${many(more, "more host")} with fewer problems, ${count(moreProblems)} in all, are not listed.` : "";
  }

  function describe() {
    const { period, hostCount, names, records, missing, payloads, hosts, gaps, moreGaps, silent, silentCount, interruptions, absent, removed, late } = data.covers;
    const named = names.slice(0, 3).map(visible).join(", ") + (hostCount > 3 ? ` and ${many(hostCount - 3, "more host")}` : "");
    byId("period").textContent = period ? `${utc(period[0])} to ${utc(period[1])} UTC · ${named} · ${many(records, "row")}` : "No rows were recorded in this period.";
    const lines = [];
    if (gaps.length) lines.push(`Periods of whole hours without rows: ${count(gaps.length + moreGaps)}, latest first:`, ...gaps.slice(0, 10).map((gap) => `    ${visible(gap.host)}: ${utc(gap.from)} to ${utc(gap.to)} UTC, ${count((gap.to - gap.from) / HOUR_MS)} h`));
    const stopped = silent.map((each) => `${visible(each.host)}, ${count(each.hours)} h`);
    if (silentCount) lines.push(`Hosts that stopped recording, with the hours from their last row to the last row of all hosts: ${stopped.slice(0, 20).join("; ")}${silentCount > 20 ? ` and ${count(silentCount - 20)} more` : ""}.`);
    if (missing) lines.push(`Rows that are missing because the recorder was too slow or could not write: ${count(missing)}.`);
    if (interruptions) lines.push(`The recorder was not running or had no connection to the bus: ${many(interruptions, "time")}. The traffic during these times is unknown.`);
    if (absent) lines.push(`Segments or index entries that were missing or damaged and could not be read: ${count(absent)}.`);
    if (removed) lines.push(`Segments that were removed before they were read: ${count(removed)}.`);
    if (late) lines.push(`Segments that arrived after their hour could no longer be recomputed: ${count(late)}.`);
    const whole = byId("whole");
    whole.textContent = lines.length ? "Parts of the record are missing. For details see Coverage below." : "Nothing is known to be missing.";
    whole.className = lines.length ? "alarm" : "faint";
    if (payloads) lines.push(`Of ${many(payloads, "payload")}, the record has only a part or the length, as configured. The sizes in this report are those of the complete payloads.`);
    byId("missing").replaceChildren(...lines.map((line) => element("p", line.startsWith("Of") ? "faint" : "", line)));
    tables.show("covers", hosts, [
      ["host", "who", (each) => each.host], ["from", "time", (each) => utc(each.first)], ["to", "time", (each) => utc(each.last)], number("hours", (each) => each.hours),
      number("rows", (each) => each.records), number("rows missing", (each) => each.missing),
      number("payloads truncated", (each) => each.cut), number("payloads omitted", (each) => each.leftOut),
    ], hostCount - hosts.length);
    byId("made").textContent = `Created ${utc(data.made)} UTC by sbusctl report.`;
  }

  function fill(id, names, all) {
    const select = byId(id);
    select.append(new Option(all, ""));
    names.forEach((name, place) => select.append(new Option(short(name, 40) || "(empty)", String(place))));
    select.addEventListener("change", () => { state[id] = select.value; redraw(); });
  }

  function redraw() {
    byId("clear").disabled = !(state.user || state.key || state.host);
    const all = commands();
    drawTiles();
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

  // Charts have their colours and width inside, so they are drawn again for paper.
  function setPaper(isPaper) {
    if (isPaper === Boolean(document.documentElement.dataset.paper)) return;
    if (isPaper) document.documentElement.dataset.paper = "yes"; else delete document.documentElement.dataset.paper;
    charts.restart();
    redraw();
    if (isPaper) charts.finish();
  }
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));
  matchMedia("print").addEventListener("change", (event) => setPaper(event.matches));
  describe();
  drawHosts();
  redraw();
  charts.start();
})();
