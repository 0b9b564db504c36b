// Draws a run's timeline on one canvas, whatever the number of its calls, and lets it be zoomed, moved and walked
// through by pointer and keys. All text goes to the canvas or into text nodes; none of it is ever read as markup.
"use strict";

(() => {
  const LABELS = { min: 120, max: 230, share: 0.19, narrow: 620 };
  const ROW = 26, BAR = 18, PAD = 7, AXIS = 28, CURVE = 92, TITLE = 18, EDGE = 12;
  const ERROR = 1, MODEL = 2;
  const HEIGHT_SHARE = 0.7, HEIGHT_MIN = 260, NEAR = 5;

  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("timeline-data").textContent);
  const chart = byId("chart"), space = byId("chart-space"), canvas = byId("chart-canvas");
  const tip = byId("chart-tip"), detail = byId("chart-detail");
  const pen = canvas.getContext("2d");
  const end = data.endS > 0 ? data.endS : 1;
  const view = { from: 0, to: end };
  const spanMin = Math.max(end / 200000, 0.002);
  let colours = {}, width = 0, height = 0, left = 0, isNarrow = false, contentHeight = 0, frame = 0;
  let selected = null, hovered = null, drag = null;

  // ------------------------------------------------------------------------------------------------------- the marks

  const marks = [], callSets = [];
  data.lanes.forEach((lane, laneIndex) => {
    const mine = [
      ...lane.bars.map((bar) => ({ kind: "attempt", lane: laneIndex, ...bar })),
      ...lane.gates.map((gate) => ({ kind: "gate", lane: laneIndex, ...gate })),
    ];
    mine.sort((one, other) => one.s - other.s || one.row - other.row);
    marks.push(...mine);
    lane.rowNames = new Map(lane.bars.filter((bar) => bar.row > 0).map((bar) => [bar.row, bar.again]));
    for (const mark of mine) if (mark.calls && mark.calls.t.length) callSets.push({ owner: mark, ...mark.calls, lane: laneIndex, row: mark.row });
    if (lane.calls.t.length) callSets.push({ owner: null, ...lane.calls, lane: laneIndex, row: 0 });
  });
  const callOf = (set, index) => ({ kind: "call", lane: set.lane, row: set.row, set, index, s: set.t[index], e: set.t[index] });
  const isSame = (one, other) => one === other || (one && other && one.kind === "call" && one.set === other.set && one.index === other.index);

  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const duration = (seconds) => {
    if (seconds < 0) return "−" + duration(-seconds);
    if (seconds < 0.9995) return seconds ? Math.round(seconds * 1000) + "ms" : "0s";
    if (seconds < 59.95) return String(Math.round(seconds * 10) / 10) + "s";
    const first = units.findIndex(([size]) => seconds >= size);
    const whole = Math.floor(seconds / units[first][0]);
    const rest = Math.floor((seconds - whole * units[first][0]) / units[first + 1][0]);
    return whole + units[first][1] + (rest ? " " + String(rest).padStart(2, "0") + units[first + 1][1] : "");
  };

  const told = (mark) => {
    if (mark.kind !== "call") return { title: `${mark.title}: ${mark.word.replaceAll("_", " ")}`, facts: mark.facts };
    const flags = mark.set.f[mark.index];
    const facts = [["Kind", flags & MODEL ? "model response" : "tool call"], ["At", "+" + duration(mark.s)]];
    if (flags & ERROR) facts.push(["Result", "in error"]);
    if (mark.set.owner) facts.push(["In", mark.set.owner.title]);
    return { title: data.names[mark.set.n[mark.index]], facts };
  };

  const address = (mark) => {
    const id = mark.kind === "call" ? mark.set.id && mark.set.id[mark.index] : mark.id;
    if (!data.runId || !id) return null;
    return `/record?run=${encodeURIComponent(data.runId)}&kind=${mark.kind}&id=${encodeURIComponent(id)}`;
  };

  // -------------------------------------------------------------------------------------------------------- geometry

  const x = (seconds) => left + ((seconds - view.from) / (view.to - view.from)) * (width - left - EDGE);
  const secondsAt = (pixel) => view.from + ((pixel - left) / (width - left - EDGE)) * (view.to - view.from);
  const lanesTop = () => AXIS - chart.scrollTop;
  const curveHeight = data.curve.length ? CURVE : 0;
  const rowTop = (mark) => lanesTop() + data.lanes[mark.lane].top + PAD + (isNarrow ? TITLE : 0) + mark.row * ROW;

  const measure = () => {
    width = chart.clientWidth;
    isNarrow = width < LABELS.narrow;
    left = isNarrow ? EDGE : Math.min(LABELS.max, Math.max(LABELS.min, width * LABELS.share));
    let top = 0;
    for (const lane of data.lanes) {
      lane.top = top;
      lane.height = lane.rows * ROW + 2 * PAD + (isNarrow ? TITLE : 0);
      top += lane.height;
    }
    contentHeight = AXIS + top + curveHeight;
    height = Math.min(contentHeight, Math.max(HEIGHT_MIN, Math.round(window.innerHeight * HEIGHT_SHARE)));
    const style = getComputedStyle(document.documentElement);
    const names = ["card", "line", "text", "muted", "accent", "grid", "lane", "tick", "tick-error", "curve", "curve-fill"];
    for (const tone of ["good", "bad", "warn", "odd", "busy", "plain"]) names.push(tone, "bar-" + tone);
    for (const name of names) colours[name] = style.getPropertyValue("--" + name).trim();
    colours.font = style.getPropertyValue("--sans").trim();
    colours.muted_bar = colours["bar-plain"];
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    chart.style.height = height + "px";
    space.style.height = contentHeight + "px";
    canvas.style.height = height + "px";
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  };

  // --------------------------------------------------------------------------------------------------------- drawing

  const text = (words, atX, atY, { colour = "text", size = 12, weight = 400, align = "left", room = Infinity } = {}) => {
    pen.font = `${weight} ${size}px ${colours.font}`;
    pen.fillStyle = colours[colour];
    pen.textAlign = align;
    pen.textBaseline = "middle";
    let shown = words;
    if (pen.measureText(shown).width > room) {
      let low = 0, high = words.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(words.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
      }
      if (!low) return;
      shown = words.slice(0, low) + "…";
    }
    pen.fillText(shown, atX, atY);
  };

  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const axisTimes = () => {
    const wanted = (view.to - view.from) / Math.max(2, (width - left) / 110);
    const step = steps.find((candidate) => candidate >= wanted) || Math.ceil(wanted / 86400) * 86400;
    const times = [];
    for (let n = Math.ceil(view.from / step - 1e-9); n * step <= view.to + step * 1e-6; n++) times.push(n * step);
    return times;
  };

  const drawLanes = (times) => {
    data.lanes.forEach((lane, index) => {
      const top = lanesTop() + lane.top;
      if (top > height || top + lane.height < 0) return;
      if (index % 2) { pen.fillStyle = colours.lane; pen.fillRect(0, top, width, lane.height); }
      const label = isNarrow ? [EDGE, top + PAD + TITLE / 2, width - 2 * EDGE] : [18, top + PAD + ROW / 2, left - 32];
      text(lane.name, label[0], label[1], { weight: 600, room: label[2] });
      if (!isNarrow) for (const [row, words] of lane.rowNames) text(words, 18, label[1] + row * ROW, { size: 11, colour: "muted", room: label[2] });
      if (lane.kind !== "step" && !isNarrow) text(lane.kind, 18, label[1] + 12, { size: 10, colour: "muted", room: label[2] });
    });
    pen.fillStyle = colours.grid;
    for (const time of times) pen.fillRect(Math.round(x(time)), AXIS, 1, height);
  };

  const clip = (draws) => {
    pen.save();
    pen.beginPath();
    pen.rect(left - 6, AXIS, width - left + 6, height - AXIS - curveHeight);
    pen.clip();
    draws();
    pen.restore();
  };

  const box = (mark) => {
    const from = Math.max(x(mark.s), left - 20), to = Math.min(x(mark.e), width + 20);
    const top = rowTop(mark) + (ROW - BAR) / 2;
    return { from, top, wide: Math.max(3, to - from), high: BAR };
  };

  const isInSight = (mark) => {
    const top = rowTop(mark);
    return top < height && top + ROW > 0 && x(mark.s) <= width && x(mark.e) >= left - 4;
  };

  const barColour = (tone) => colours["bar-" + tone] || colours["bar-plain"];

  const drawBar = (bar) => {
    const { from, top, wide, high } = box(bar);
    pen.beginPath();
    pen.roundRect(from, top, wide, high, Math.min(4, wide / 2));
    pen.fillStyle = barColour(bar.tone);
    pen.globalAlpha = bar.known ? 1 : 0.45;
    pen.fill();
    pen.globalAlpha = 1;
    if (!bar.known) {
      pen.setLineDash([3, 3]);
      pen.strokeStyle = barColour(bar.tone);
      pen.lineWidth = 1.5;
      pen.stroke();
      pen.setLineDash([]);
    }
    const isCrowded = bar.calls.t.length > 0;
    const words = (bar.tone === "bad" ? "✕ " : "") + bar.word.replaceAll("_", " ");
    if (!isCrowded && wide > 46) text(words, Math.max(from, left) + 7, top + high / 2 + 0.5, { size: 11, weight: 600, colour: "tick", room: wide - 12 });
    if (bar.tone === "bad" && (isCrowded || wide <= 46)) text("✕", from + wide + 5, top + high / 2 + 0.5, { size: 11, weight: 700, colour: "bad" });
  };

  // One line per pixel is all that can be seen, so more are not drawn; an error is never hidden by others.
  const drawCalls = (set) => {
    const top = rowTop(set), middle = top + ROW / 2;
    if (top > height || top + ROW < 0) return;
    const errors = [];
    let last = -1;
    pen.fillStyle = colours.tick;
    for (let index = 0; index < set.t.length; index++) {
      const at = Math.round(x(set.t[index]));
      if (at < left - 1 || at > width) continue;
      if (set.f[index] & ERROR) { if (errors[errors.length - 1] !== at) errors.push(at); continue; }
      if (at === last) continue;
      last = at;
      const half = set.f[index] & MODEL ? 3 : 6;
      pen.globalAlpha = 0.72;
      pen.fillRect(at, middle - half, 1, 2 * half);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = colours["tick-error"];
    for (const at of errors) pen.fillRect(at - 1, middle - 9, 2, 18);
  };

  const drawGate = (gate) => {
    const middle = rowTop(gate) + ROW / 2, from = x(gate.s), to = x(gate.e);
    if (gate.waits && to > from + 1) {
      const start = Math.max(from, left - 20), stop = Math.min(to, width + 20), high = 12;
      pen.save();
      pen.beginPath();
      pen.roundRect(start, middle - high / 2, stop - start, high, 3);
      pen.clip();
      pen.fillStyle = colours.card;
      pen.fillRect(start, middle - high / 2, stop - start, high);
      pen.strokeStyle = colours["bar-warn"];
      pen.lineWidth = 2;
      pen.beginPath();
      for (let at = start - high - ((start - high) % 6); at < stop; at += 6) { pen.moveTo(at, middle + high / 2); pen.lineTo(at + high, middle - high / 2); }
      pen.stroke();
      pen.restore();
      pen.strokeStyle = colours["bar-warn"];
      pen.lineWidth = 1;
      pen.beginPath();
      pen.roundRect(start + 0.5, middle - high / 2 + 0.5, stop - start - 1, high - 1, 3);
      pen.stroke();
    }
    pen.beginPath();
    if (gate.open) { pen.moveTo(to - 7, middle - 7); pen.lineTo(to + 3, middle); pen.lineTo(to - 7, middle + 7); }
    else { pen.moveTo(to, middle - 7); pen.lineTo(to + 7, middle); pen.lineTo(to, middle + 7); pen.lineTo(to - 7, middle); }
    pen.closePath();
    pen.fillStyle = colours[gate.tone] || colours.plain;
    pen.fill();
    pen.strokeStyle = colours.card;
    pen.lineWidth = 1.5;
    pen.stroke();
  };

  const drawFocus = (mark, colour) => {
    pen.strokeStyle = colours[colour];
    pen.lineWidth = 2;
    pen.beginPath();
    if (mark.kind === "call") pen.rect(Math.round(x(mark.s)) - 4, rowTop(mark) + 1, 9, ROW - 2);
    else { const { from, top, wide, high } = box(mark); pen.roundRect(from - 3, top - 3, wide + 6, high + 6, 6); }
    pen.stroke();
  };

  const drawAxis = (times) => {
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, width, AXIS);
    pen.fillStyle = colours.line;
    pen.fillRect(0, AXIS - 1, width, 1);
    for (const time of times) {
      const at = x(time), isLast = at > width - 40;
      text((time ? "+" : "") + duration(time), isLast ? Math.min(at, width - EDGE) : at + 4, AXIS / 2, { size: 11, colour: "muted", align: isLast ? "right" : "left" });
    }
  };

  const drawCurve = (times) => {
    if (!curveHeight) return;
    const top = height - curveHeight, floor = height - 10, ceiling = top + 26;
    const field = data.usdTotal !== null ? 1 : 2, total = data.curve[data.curve.length - 1][field];
    pen.fillStyle = colours.card;
    pen.fillRect(0, top, width, curveHeight);
    pen.fillStyle = colours.line;
    pen.fillRect(0, top, width, 1);
    pen.fillStyle = colours.grid;
    for (const time of times) pen.fillRect(Math.round(x(time)), top + 1, 1, curveHeight);
    const y = (amount) => floor - (total > 0 ? amount / total : 0) * (floor - ceiling);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width - left, curveHeight);
    pen.clip();
    pen.beginPath();
    pen.moveTo(x(0), y(0));
    let before = 0;
    for (const point of data.curve) { const at = x(point[0]); pen.lineTo(at, y(before)); pen.lineTo(at, y(point[field])); before = point[field]; }
    pen.lineTo(x(end), y(before));
    pen.strokeStyle = colours.curve;
    pen.lineWidth = 2;
    pen.stroke();
    pen.lineTo(x(end), floor);
    pen.lineTo(x(0), floor);
    pen.closePath();
    pen.fillStyle = colours["curve-fill"];
    pen.fill();
    pen.restore();
    const label = field === 1 ? "Spend" : "Tokens", sum = field === 1 ? data.usdTotal : data.tokensTotal;
    if (isNarrow) text(`${label} ${sum}`, EDGE, top + 14, { weight: 600, room: width - 2 * EDGE });
    else { text(label, 18, top + 24, { weight: 600 }); text(sum, 18, top + 42, { colour: "muted", room: left - 32 }); }
  };

  const draw = () => {
    frame = 0;
    const times = axisTimes();
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, width, height);
    drawLanes(times);
    clip(() => {
      for (const mark of marks) if (mark.kind === "attempt" && isInSight(mark)) drawBar(mark);
      callSets.forEach(drawCalls);
      for (const mark of marks) if (mark.kind === "gate" && isInSight(mark)) drawGate(mark);
      if (hovered && !isSame(hovered, selected)) drawFocus(hovered, "muted");
      if (selected) drawFocus(selected, "accent");
    });
    drawCurve(times);
    drawAxis(times);
    chart.dataset.from = view.from;
    chart.dataset.to = view.to;
  };
  const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };

  // ------------------------------------------------------------------------------------------------- moving, zooming

  const look = (from, to) => {
    const span = Math.min(end, Math.max(spanMin, to - from));
    view.from = Math.min(Math.max(0, from), end - span);
    view.to = view.from + span;
    redraw();
  };
  const zoom = (factor, around = (view.from + view.to) / 2) => look(around - (around - view.from) * factor, around + (view.to - around) * factor);
  const move = (share) => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  const select = (mark) => {
    selected = mark;
    chart.dataset.selected = mark ? told(mark).title : "";
    detail.replaceChildren();
    if (mark) {
      if (mark.e < view.from || mark.s > view.to) { const half = (view.to - view.from) / 2; look(mark.s - half, mark.s + half); }
      const top = rowTop(mark);
      if (top < AXIS) chart.scrollTop -= AXIS - top + PAD;
      else if (top + ROW > height - curveHeight) chart.scrollTop += top + ROW - height + curveHeight + PAD;
      const { title, facts } = told(mark), list = document.createElement("dl"), head = document.createElement("h3");
      head.textContent = title;
      for (const [name, value] of facts) {
        const pair = document.createElement("div"), term = document.createElement("dt"), said = document.createElement("dd");
        term.textContent = name;
        said.textContent = value;
        pair.append(term, said);
        list.append(pair);
      }
      detail.append(head, list);
      const target = address(mark);
      if (target) {
        const link = document.createElement("a");
        link.href = target;
        link.textContent = "Open the record";
        detail.append(link);
      }
    }
    redraw();
  };

  const walk = (by) => {
    const now = selected && selected.kind === "call" ? selected.set.owner : selected;
    const at = now ? marks.indexOf(now) : by > 0 ? -1 : marks.length;
    const next = marks[Math.min(marks.length - 1, Math.max(0, at + by))];
    if (next) select(next);
  };
  const walkLane = (by) => {
    const lanes = [...new Set(marks.map((mark) => mark.lane))];
    const at = selected ? lanes.indexOf(selected.lane) : by > 0 ? -1 : lanes.length;
    const next = lanes[Math.min(lanes.length - 1, Math.max(0, at + by))];
    if (next !== undefined) select(marks.find((mark) => mark.lane === next));
  };
  const walkCalls = (by) => {
    if (selected && selected.kind === "call") {
      const index = selected.index + by;
      if (index >= 0 && index < selected.set.t.length) { select(callOf(selected.set, index)); return; }
      const other = callSets[callSets.indexOf(selected.set) + by];
      if (other) select(callOf(other, by > 0 ? 0 : other.t.length - 1));
      return;
    }
    const set = callSets.find((candidate) => !selected || candidate.owner === selected) || callSets.find((candidate) => candidate.lane >= selected.lane);
    if (set) select(callOf(set, by > 0 ? 0 : set.t.length - 1));
  };

  const keys = {
    ArrowRight: (event) => (event.shiftKey ? move(0.2) : walk(1)),
    ArrowLeft: (event) => (event.shiftKey ? move(-0.2) : walk(-1)),
    ArrowDown: () => walkLane(1),
    ArrowUp: () => walkLane(-1),
    Home: () => marks.length && select(marks[0]),
    End: () => marks.length && select(marks[marks.length - 1]),
    ".": () => walkCalls(1),
    ",": () => walkCalls(-1),
    "+": () => zoom(0.6, selected ? selected.s : undefined),
    "=": () => zoom(0.6, selected ? selected.s : undefined),
    "-": () => zoom(1 / 0.6),
    "0": () => look(0, end),
    Escape: () => select(null),
    Enter: () => { const target = selected && address(selected); if (target) window.location.assign(target); },
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key](event);
  });

  // --------------------------------------------------------------------------------------------------------- pointer

  const nearestCall = (set, atX) => {
    let low = 0, high = set.t.length;
    const wanted = secondsAt(atX);
    while (low < high) { const middle = (low + high) >> 1; if (set.t[middle] < wanted) low = middle + 1; else high = middle; }
    const near = [low - 1, low].filter((index) => index >= 0 && index < set.t.length && Math.abs(x(set.t[index]) - atX) <= NEAR);
    near.sort((one, other) => Math.abs(x(set.t[one]) - atX) - Math.abs(x(set.t[other]) - atX));
    return near.length ? callOf(set, near[0]) : null;
  };

  const markAt = (atX, atY) => {
    if (atX < left - NEAR || atY < AXIS || atY > height - curveHeight) return null;
    const isInRow = (mark) => atY >= rowTop(mark) && atY < rowTop(mark) + ROW;
    const gate = marks.find((mark) => mark.kind === "gate" && isInRow(mark) && (Math.abs(x(mark.e) - atX) < 8 || (mark.waits && atX >= x(mark.s) && atX <= x(mark.e))));
    if (gate) return gate;
    for (const set of callSets) if (isInRow(set)) { const call = nearestCall(set, atX); if (call) return call; }
    return marks.find((mark) => mark.kind === "attempt" && isInRow(mark) && atX >= x(mark.s) - NEAR && atX <= Math.max(x(mark.e), x(mark.s) + 3) + NEAR) || null;
  };

  const showTip = (mark, event) => {
    tip.hidden = !mark;
    if (!mark) return;
    const { title, facts } = told(mark), head = document.createElement("strong");
    head.textContent = title;
    tip.replaceChildren(head, ...facts.slice(0, 4).map(([name, value]) => { const line = document.createElement("div"); line.textContent = `${name}: ${value}`; return line; }));
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
  };

  const place = (event) => { const edge = canvas.getBoundingClientRect(); return [event.clientX - edge.left, event.clientY - edge.top]; };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0) drag = { x: event.clientX, from: view.from, to: view.to, hasMoved: false, id: event.pointerId };
  });
  chart.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = event.clientX - drag.x;
      if (Math.abs(by) > 3 && !drag.hasMoved) { drag.hasMoved = true; chart.setPointerCapture(drag.id); chart.classList.add("moving"); showTip(null); }
      if (drag.hasMoved) { const shift = (by / (width - left - EDGE)) * (drag.to - drag.from); look(drag.from - shift, drag.to - shift); return; }
    }
    const mark = markAt(...place(event));
    if (!isSame(mark, hovered)) { hovered = mark; redraw(); }
    showTip(mark, event);
  });
  chart.addEventListener("pointerup", (event) => {
    if (drag && !drag.hasMoved) select(markAt(...place(event)));
    drag = null;
    chart.classList.remove("moving");
  });
  chart.addEventListener("pointercancel", () => { drag = null; chart.classList.remove("moving"); });
  chart.addEventListener("pointerleave", () => { hovered = null; showTip(null); redraw(); });
  chart.addEventListener("dblclick", (event) => zoom(0.4, secondsAt(place(event)[0])));
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    if (event.shiftKey) move(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 100)) * 0.3), secondsAt(place(event)[0]));
  }, { passive: false });
  chart.addEventListener("scroll", redraw, { passive: true });
  byId("zoom-in").addEventListener("click", () => zoom(0.6));
  byId("zoom-out").addEventListener("click", () => zoom(1 / 0.6));
  byId("zoom-fit").addEventListener("click", () => look(0, end));

  new ResizeObserver(() => { if (chart.clientWidth !== width) measure(); }).observe(chart);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", measure);
  measure();
  chart.dataset.marks = marks.length;
  chart.dataset.calls = callSets.reduce((sum, set) => sum + set.t.length, 0);
})();
