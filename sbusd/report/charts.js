// Charts: those in sight are drawn at once, the others one at a time when the browser has nothing else to do. The chart library lies packed
// in #library, a third of its size; whatever needs no chart is there before it is unpacked.
"use strict";
const charts = (() => {
  const waiting = new Map(); // by box: what shall be drawn there
  let isReady = false;
  let isBroken = false;
  let isIdleAsked = false;

  const isInSight = (box) => {
    const place = box.getBoundingClientRect();
    return place.bottom >= 0 && place.top <= innerHeight;
  };
  const whenIdle = (act) => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 1000 }) : setTimeout(act, 20));

  function drawOne(box) {
    const { traces, layout } = waiting.get(box);
    waiting.delete(box);
    if (!box.classList.contains("js-plotly-plot")) box.replaceChildren();
    Plotly.react(box, traces, layout, { responsive: true, displayModeBar: false });
  }

  // Whoever waits for the page is told by data-drawn that what is in sight is drawn, and by data-settled that everything is.
  function settle() {
    const root = document.documentElement;
    root.dataset.drawn = "yes";
    if (!waiting.size) { root.dataset.settled = "yes"; return; }
    if (isIdleAsked) return;
    isIdleAsked = true;
    whenIdle(() => {
      isIdleAsked = false;
      const [next] = [...waiting.keys()].sort((a, b) => isInSight(b) - isInSight(a));
      if (next) drawOne(next);
      settle();
    });
  }

  // Have a chart drawn in a box, in place of what is there.
  function show(box, traces, layout) {
    box.style.minHeight = `${layout.height}px`; // so that nothing moves when it comes
    waiting.set(box, { traces, layout });
    delete document.documentElement.dataset.settled;
  }

  // Put something else where a chart was or would have been.
  function clear(box, content) {
    waiting.delete(box);
    box.style.minHeight = "";
    if (box.classList.contains("js-plotly-plot")) Plotly.purge(box);
    box.replaceChildren(content);
  }

  // Draw what was shown since, as far as it is in sight; the rest follows.
  function flush() {
    if (isBroken) {
      for (const box of [...waiting.keys()]) clear(box, "This browser is too old to draw the charts. The tables are complete.");
    } else if (!isReady) {
      return;
    }
    for (const box of [...waiting.keys()].filter(isInSight)) drawOne(box);
    settle();
  }

  async function unpack() {
    const text = atob(document.getElementById("library").textContent);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) packed[i] = text.charCodeAt(i);
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script); // it runs here, if its checksum is one that the page's policy names
    isReady = true;
    flush();
  }

  addEventListener("beforeprint", () => { if (isReady) { [...waiting.keys()].forEach(drawOne); settle(); } });
  const failed = () => { isBroken = true; flush(); };
  // After the first frame: numbers and lists are on the screen while it is unpacked.
  const start = () => requestAnimationFrame(() => setTimeout(() => unpack().catch(failed)));
  return { show, clear, flush, start };
})();
