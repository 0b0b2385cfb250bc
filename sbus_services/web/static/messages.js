// Live messages: subscriptions, and a list of limited length with the newest message at the top.

import { base64Size, clock, count, element, hexadecimal, plural, size, visible, visibleLines } from "./text.js";
import { userName } from "./table.js";

const MOST_ROWS = 500;
const MOST_CHARACTERS = 2000;
const MOST_BYTES = 64;
const KEPT = "sbus-web-patterns";

const $ = (id) => document.getElementById(id);

function shownPattern(pattern) {
  return pattern === "" ? "(all messages)" : visible(pattern);
}

function shownPayload(frame) {
  if (typeof frame.payload_base64 === "string") {
    const bytes = base64Size(frame.payload_base64);
    return `${size(bytes)}: ${hexadecimal(frame.payload_base64, MOST_BYTES)}${bytes > MOST_BYTES ? " …" : ""}`;
  }
  const more = frame.payload.length - MOST_CHARACTERS;
  return visibleLines(frame.payload.slice(0, MOST_CHARACTERS)) + (more > 0 ? `… (${plural(more, "more character")})` : "");
}

function shownSender(sender) {
  if (sender === null) return "-";
  if (sender.origin !== null) return `${visible(sender.origin)} via ${sender.connection}`;
  return `${visible(userName(sender.uid))} (connection ${sender.connection}, pid ${sender.pid})`;
}

export class Messages {
  #session;
  #patterns = new Set(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
  #active = new Set();
  #pending = []; // newest last
  #counts = { received: 0, lost: 0, unknown: 0, waiting: 0 };
  #isPaused = false;
  #isScheduled = false;
  #maxPatterns = 0;

  constructor(session) {
    this.#session = session;
    $("subscribe").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#subscribe($("pattern").value);
    });
    $("filter").addEventListener("input", () => this.#filter());
    $("pause").addEventListener("click", () => this.#pause(!this.#isPaused));
    $("clear").addEventListener("click", () => this.#clear());
    this.#showPatterns();
  }

  // A session has begun: subscribe to what the earlier one had.
  begin(hello) {
    this.#maxPatterns = hello.max_patterns;
    if (this.#active.size) this.#note("The connection to the gateway was made again. Messages may be missing.");
    this.#active.clear();
    for (const pattern of this.#patterns) this.#subscribe(pattern, false);
  }

  receive(frame) {
    switch (frame.type) {
      case "message":
        this.#counts.received += 1;
        this.#add({ frame, moment: new Date() });
        break;
      case "gap":
        if (frame.lost) this.#counts.lost += frame.lost;
        else this.#counts.unknown += 1;
        this.#note(`${frame.lost ? plural(frame.lost, "message") : "An unknown number of messages"} missing in ${shownPattern(frame.pattern)}`);
        break;
      case "reconnected":
        this.#note(`The bus was unavailable for ${frame.seconds.toFixed(1)} s: messages may be missing in ${shownPattern(frame.pattern)}`);
        break;
    }
  }

  async #subscribe(pattern, isNew = true) {
    try {
      const response = await this.#session.request("subscribe", { pattern });
      this.#patterns.add(pattern);
      this.#active.add(pattern);
      $("subscribe-status").textContent = response.hint === null ? `Subscribed to ${shownPattern(pattern)}.` : visible(response.hint);
      if (isNew) $("pattern").value = "";
    } catch (error) {
      $("subscribe-status").textContent = visible(error.message);
    }
    this.#showPatterns();
  }

  async #unsubscribe(pattern) {
    this.#patterns.delete(pattern);
    this.#active.delete(pattern);
    this.#showPatterns();
    $("pattern").focus();
    try {
      await this.#session.request("unsubscribe", { pattern });
      $("subscribe-status").textContent = `Unsubscribed from ${shownPattern(pattern)}.`;
    } catch (error) {
      $("subscribe-status").textContent = visible(error.message);
    }
  }

  #showPatterns() {
    sessionStorage.setItem(KEPT, JSON.stringify([...this.#patterns]));
    const chips = [...this.#patterns].map((pattern) => {
      const chip = element("li", shownPattern(pattern));
      const button = element("button", "×");
      button.type = "button";
      button.setAttribute("aria-label", `Unsubscribe from ${shownPattern(pattern)}`);
      button.addEventListener("click", () => this.#unsubscribe(pattern));
      chip.append(button);
      return chip;
    });
    $("patterns").replaceChildren(...chips);
  }

  #note(text) {
    this.#add({ text, moment: new Date() });
  }

  // Rows are made at most once for each picture of the screen; more than fit into the list are not made at all.
  #add(entry) {
    this.#pending.push(entry);
    if (this.#pending.length > 2 * MOST_ROWS) this.#pending.splice(0, this.#pending.length - MOST_ROWS);
    this.#counts.waiting += this.#isPaused ? 1 : 0;
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.#draw();
    });
  }

  #draw() {
    const { received, lost, unknown, waiting } = this.#counts;
    const parts = [`${plural(received, "message")} received`, `${count(lost)} lost`];
    if (unknown) parts.push(plural(unknown, "unknown loss").replace("losss", "losses"));
    parts.push(this.#isPaused ? `paused, ${count(waiting)} new` : `the newest ${MOST_ROWS} are shown`);
    $("counts").textContent = parts.join(" · ");
    if (this.#isPaused) return;
    const list = $("list");
    const rows = this.#pending.slice(-MOST_ROWS).reverse().map((entry) => this.#row(entry));
    this.#pending = [];
    list.prepend(...rows);
    while (list.rows.length > MOST_ROWS) list.lastElementChild.remove();
    $("list-empty").hidden = list.rows.length > 0;
  }

  #row({ frame, text, moment }) {
    const row = document.createElement("tr");
    row.append(element("td", clock(moment), "short"));
    if (frame === undefined) {
      row.className = "gap";
      const cell = element("td", text);
      cell.colSpan = 3;
      row.append(cell);
      return row;
    }
    row.append(
      element("td", visible(frame.key), "code"),
      element("td", shownSender(frame.sender)),
      element("td", shownPayload(frame), "code"),
    );
    row.hidden = !this.#matches(row);
    return row;
  }

  #matches(row) {
    const wanted = $("filter").value.toLowerCase();
    return row.className === "gap" || [1, 3].some((index) => row.cells[index].textContent.toLowerCase().includes(wanted));
  }

  #filter() {
    for (const row of $("list").rows) row.hidden = !this.#matches(row);
  }

  #pause(isPaused) {
    this.#isPaused = isPaused;
    this.#counts.waiting = 0;
    $("pause").setAttribute("aria-pressed", String(isPaused));
    this.#draw();
  }

  #clear() {
    this.#pending = [];
    this.#counts = { received: 0, lost: 0, unknown: 0, waiting: 0 };
    $("list").replaceChildren();
    this.#draw();
  }
}
