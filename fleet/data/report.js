// The charts of a report, drawn by ECharts. Clicking a network highlights it in all charts, and #network=NAME shows its page.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main"), article = document.querySelector("article");
const charts = new Set();
const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

// ---- reload a page that is rewritten until the run ends -------------------------------------------------------------

const every = 1000 * document.documentElement.dataset.every, written = new Date(document.lastModified);
if (every && Date.now() - written > 10 * every + 60000) {
  const text = `This page was last written at ${written.toLocaleString()}, and has stopped reloading.`;
  document.querySelector("h1").after(element("p", {className: "note", textContent: text}));
} else if (every) {
  setTimeout(() => location.reload(), every);
}

// ---- the reader's choices, restored when the page reloads -----------------------------------------------------------

const KEY = "fleet " + location.pathname;
const saved = (() => { try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch { return {}; } })();
const selected = new Set(saved.chosen), sorted = saved.sorted || {}, zooms = saved.zooms || {};
const view = {log: false, whole: false, colored: false, ...saved.view};
let mainY = saved.y || 0;

addEventListener("pagehide", () => {
  const open = [...document.querySelectorAll("details")].map(each => each.open);
  const y = main.hidden ? mainY : scrollY;
  try { sessionStorage.setItem(KEY, JSON.stringify({chosen: [...selected], sorted, zooms, view, open, y})); } catch { }
});

// ---- colors ---------------------------------------------------------------------------------------------------------

const PALETTE = {
  light: ["#1f77b4", "#f07f09", "#2ca02c", "#d62728", "#8e5cc0", "#8c564b", "#e377c2", "#12a5b8", "#a09a10", "#2f3a9e", "#e0b400", "#00705a"],
  dark: ["#4ea3e0", "#ff9d3c", "#4cc04c", "#ff6b6b", "#b48ae8", "#b98577", "#f29ad4", "#3fd0e2", "#cfc93a", "#8390ff", "#ffd84d", "#2fb896"],
};
const DASHES = ["solid", [7, 4], [2, 2], [9, 3, 2, 3], [14, 4]];
const scheme = matchMedia("(prefers-color-scheme: dark)");
const isPrinting = () => document.documentElement.classList.contains("printing");
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
let theme = {};

function readTheme() {
  theme = Object.fromEntries(["text", "soft", "back", "grid", "pale", "blue", "line"].map(name => [name, css(name)]));
  theme.palette = PALETTE[scheme.matches && !isPrinting() ? "dark" : "light"];
}

// The best networks have a color each. All others share the colors, and have another dash.
const slots = new Map();
[...data.best].sort((a, b) => a - b).forEach(network => {
  const used = new Set(slots.values()), count = PALETTE.light.length;
  let slot = network % count;
  while (used.has(slot)) slot = (slot + 1) % count;
  slots.set(network, slot);
});

const name = network => data.networks[network];
const ownColor = network => theme.palette[slots.has(network) ? slots.get(network) : network % theme.palette.length];
const dash = network => DASHES[slots.has(network) ? 0 : 1 + Math.floor(network / theme.palette.length) % (DASHES.length - 1)];
const isSelected = network => selected.has(name(network));
const isColored = network => slots.has(network) || view.colored;

// The color of a network: its own if it is selected, pale while only others are.
const color = (network, otherwise) => !selected.size ? otherwise : isSelected(network) ? ownColor(network) : theme.pale;
const opacity = (network, otherwise) => !selected.size ? otherwise : isSelected(network) ? 1 : otherwise / 4;
const rank = network => !selected.size || !isSelected(network) ? 0 : 1;  // selected networks are drawn on top
const statusColor = status => data.statuses[status] || "#888";

function toggle(network) {
  if (!selected.delete(network)) selected.add(network);
  follow();
}

function follow() {
  readTheme();
  charts.forEach(chart => chart.draw());
  document.querySelectorAll("tr[data-network]").forEach(row => {
    const network = data.networks.indexOf(row.dataset.network);
    row.classList.toggle("chosen", selected.has(row.dataset.network));
    row.style.setProperty("--own", selected.has(row.dataset.network) ? ownColor(network) : "transparent");
  });
  legend();
}

function act(text, run) {
  return element("button", {textContent: text, className: "act", onclick: () => { run(); follow(); }});
}

function sample(network) {
  const [svg, line] = ["svg", "line"].map(tag => document.createElementNS("http://www.w3.org/2000/svg", tag));
  const pattern = dash(network), drawn = {x1: 0, x2: 26, y1: 4, y2: 4, stroke: ownColor(network)};
  Object.entries(drawn).forEach(([key, value]) => line.setAttribute(key, value));
  if (pattern !== "solid") line.setAttribute("stroke-dasharray", pattern.join(" "));
  svg.append(line);
  return svg;
}

function legend() {
  const box = document.getElementById("legend");
  if (!box) return;
  const chosen = [...selected].map(network => data.networks.indexOf(network)).filter(index => index >= 0);
  const listed = selected.size ? chosen : view.colored ? curveNetworks : data.best;
  box.replaceChildren(...listed.map(network => element("button", {
    onclick: () => toggle(name(network)), onmouseenter: () => point(network), onmouseleave: () => point(null),
  }, sample(network), name(network))));
  if (selected.size) box.append(act("show all", () => selected.clear()));
}

// Thickens the curves of a network, on which the pointer is in the legend.
let pointed = null;
function point(network) {
  pointed = network;
  charts.forEach(chart => { if (chart.followsPointer) chart.draw(); });
}

const curveNetworks = [...new Set(data.curves.flatMap(({lines}) => lines.map(([network]) => network)))];

function controls(clipped) {
  const box = document.getElementById("controls");
  if (!box) return;
  const others = curveNetworks.length - data.best.length, parts = [];
  parts.push(act(view.log ? "linear axes" : "log axes", () => { view.log = !view.log; clearZooms(); }));
  if (others > 0) parts.push(act(view.colored ? `gray for all but the best ${data.best.length}` : `color all ${curveNetworks.length}`,
                                 () => { view.colored = !view.colored; }));
  if (others > 0) parts.push(picker());
  if (view.whole) parts.push(act("cut off outliers", () => { view.whole = false; clearZooms(); }));
  else if (clipped.length) parts.push(
    element("span", {className: "note", textContent: `${clipped.slice(0, 3).map(name).join(", ")}` +
      `${clipped.length > 3 ? ` and ${clipped.length - 3} more` : ""} ${clipped.length > 1 ? "leave" : "leaves"} the charts.`}),
    act("show everything", () => { view.whole = true; clearZooms(); }));
  box.replaceChildren(...parts);
}

function picker() {
  const input = element("input", {placeholder: "name of a network"});
  input.setAttribute("list", "names");
  input.onchange = () => { if (data.networks.includes(input.value)) toggle(input.value); input.value = ""; };
  const names = element("datalist", {id: "names"}, ...curveNetworks.map(network => element("option", {value: name(network)})));
  return element("label", {}, "highlight ", input, names);
}

function clearZooms() { Object.keys(zooms).forEach(key => delete zooms[key]); }

// ---- a chart with a tooltip -----------------------------------------------------------------------------------------

const tip = document.body.appendChild(element("div", {id: "tip"}));

function showTip(hit, event) {
  tip.style.display = hit ? "block" : "none";
  if (!hit) return;
  tip.textContent = hit.label;
  tip.style.left = Math.max(scrollX, Math.min(event.pageX + 14, scrollX + innerWidth - tip.offsetWidth - 20)) + "px";
  tip.style.top = event.pageY + 14 + "px";
}

const GRID = {left: 56, right: 20, top: 30, bottom: 30};

// Draws a chart. Args: option() returns its current options; hits, each {network, label}, are its items, or points if they
// have x and y; key names it where a reader can zoom.
function chart(box, height, option, hits, {key = null, followsPointer = false} = {}) {
  if (!box) return;
  box.style.height = height + "px";
  const drawn = echarts.init(box, null, {devicePixelRatio: Math.max(2, devicePixelRatio)});
  let pixels = null, highlighted = null, dragged = false;
  const drawable = {
    followsPointer,
    draw() {
      const options = option();
      if (key !== null && zooms[key]) {
        const [[left, right], [low, high]] = zooms[key];
        Object.assign(options.xAxis, {min: left, max: right, interval: undefined});
        Object.assign(options.yAxis, {min: low, max: high, interval: undefined});
      }
      // Merged, the selection on the axes of parallel coordinates stays.
      drawn.setOption({animation: false, textStyle: {color: theme.text}, ...options}, key === null ? {replaceMerge: ["series", "dataZoom"]} : {notMerge: true});
      pixels = null;
    },
    resize() {
      if (!box.clientWidth) return;
      drawn.resize();
      pixels = null;
    },
    dispose() { drawn.dispose(); charts.delete(drawable); },
  };
  const handleHover = (hit, event) => {
    drawn.getZr().setCursorStyle(hit && hit.network !== null ? "pointer" : key === null ? "default" : "crosshair");
    showTip(hit, event);
  };
  const handleClick = hit => { if (!dragged && hit && hit.network !== null && !main.hidden) toggle(name(hit.network)); };
  if (hits.length && hits[0].x !== undefined) {
    const isInside = ([x, y]) => x >= GRID.left - 4 && y >= GRID.top - 4 && x <= box.clientWidth && y <= height;
    const nearest = event => {
      pixels = pixels || hits.map(hit => drawn.convertToPixel({gridIndex: 0}, [hit.x, hit.y]));
      let best = null, minDistance = 25 * 25;
      pixels.forEach((pixel, index) => {
        const distance = (pixel[0] - event.offsetX) ** 2 + (pixel[1] - event.offsetY) ** 2;
        if (distance < minDistance && isInside(pixel)) { minDistance = distance; best = hits[index]; }
      });
      return best;
    };
    const highlight = hit => {
      if (highlighted === hit) return;
      if (highlighted) drawn.dispatchAction({type: "downplay", seriesIndex: highlighted.series, dataIndex: highlighted.index});
      highlighted = hit;
      if (hit) drawn.dispatchAction({type: "highlight", seriesIndex: hit.series, dataIndex: hit.index});
    };
    drawn.getZr().on("mousemove", event => { const hit = nearest(event); highlight(hit); handleHover(hit, event.event); });
    drawn.getZr().on("click", event => handleClick(nearest(event)));
    drawn.getZr().on("globalout", () => { highlight(null); showTip(null); });
  } else {
    drawn.on("mousemove", item => handleHover(hits[item.dataIndex], item.event.event));
    drawn.on("mouseout", () => showTip(null));
    drawn.on("click", item => handleClick(hits[item.dataIndex]));
  }
  if (key !== null) zoomable(box, drawn, key, moved => { dragged = moved; });
  charts.add(drawable);  // drawn once all have been created
  return drawable;
}

// Lets a reader drag a rectangle to zoom; a double click shows all again.
function zoomable(box, drawn, key, noteDrag) {
  const frame = box.appendChild(element("div", {className: "zoom", hidden: true}));
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  let from = null;
  const at = event => {
    const {left, top} = box.getBoundingClientRect();
    return [clamp(event.clientX - left, GRID.left, box.clientWidth - GRID.right),
            clamp(event.clientY - top, GRID.top, box.clientHeight - GRID.bottom)];
  };
  const apart = (a, b) => Math.abs(a[0] - b[0]) > 8 && Math.abs(a[1] - b[1]) > 8;
  box.addEventListener("pointerdown", event => {
    if (event.button || event.pointerType === "touch") return;
    from = at(event);
    noteDrag(false);
  });
  addEventListener("pointermove", event => {
    if (!from) return;
    const to = at(event);
    frame.hidden = !apart(from, to);
    Object.assign(frame.style, {
      left: Math.min(from[0], to[0]) + "px", width: Math.abs(from[0] - to[0]) + "px",
      top: Math.min(from[1], to[1]) + "px", height: Math.abs(from[1] - to[1]) + "px",
    });
  });
  addEventListener("pointerup", event => {
    if (!from) return;
    const to = at(event), start = from;
    from = null;
    frame.hidden = true;
    if (!apart(start, to)) return;
    noteDrag(true);
    const ends = [start, to].map(pixel => drawn.convertFromPixel({gridIndex: 0}, pixel));
    zooms[key] = [0, 1].map(axis => ends.map(end => end[axis]).sort((a, b) => a - b));
    follow();
  });
  box.addEventListener("dblclick", () => { delete zooms[key]; follow(); });
}

const short = value => typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
const titled = text => ({text, left: 44, top: 2, textStyle: {fontSize: 12, fontWeight: "normal", color: theme.soft}});
const styled = () => ({splitLine: {lineStyle: {color: theme.grid}}, axisLabel: {color: theme.soft},
                       nameTextStyle: {color: theme.soft}, axisLine: {onZero: false, lineStyle: {color: theme.line}}});
const box = (id, kind = "chart") => {
  const index = document.getElementById(id);
  return index && index.appendChild(element("div", {className: kind}));
};

// ---- ranges of axes -------------------------------------------------------------------------------------------------

// The range that most curves or points keep to. Ends that a few exceed by far are cut, on the sides that can be bad; shares and
// accuracies, from 0 to 1, are not.
function robust(lows, highs, {share = 0.5, top = true, bottom = false}) {
  const at = (values, part) => [...values].sort((a, b) => a - b)[Math.floor(part * (values.length - 1))];
  const least = Math.min(...lows), most = Math.max(...highs);
  if (view.whole || lows.length < 2 || (least >= 0 && most <= 1)) return [least, most];
  const usual = at(highs, share), usualLow = -at(lows.map(value => -value), share);
  const high = usual + 3 * (usual - (bottom ? usualLow : least)), low = usualLow - 3 * ((top ? usual : most) - usualLow);
  return [bottom ? Math.min(...lows.filter(value => value >= low)) : least,
          top ? Math.max(...highs.filter(value => value <= high)) : most];
}

// An axis over a range, with round ends.
function valueAxis([low, high], isLog = false) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return {type: "value", ...styled()};
  if (isLog) {
    const round = (value, way) => { const unit = 10 ** Math.floor(Math.log10(value)); return way(value / unit * (1 - 1e-9)) * unit; };
    return {type: "log", min: round(low, Math.floor), max: round(high, Math.ceil), ...styled()};
  }
  const span = high - low || Math.abs(high) || 1, unit = 10 ** Math.floor(Math.log10(span / 5));
  const step = [1, 2, 5, 10].map(factor => factor * unit).find(step => span / step <= 6);
  const clean = value => Number(value.toPrecision(12));
  return {type: "value", min: clean(Math.floor(low / step) * step), max: clean(Math.ceil(high / step) * step), interval: step, ...styled()};
}

// ---- learning curves -------------------------------------------------------------------------------------------------

const epochsOf = ([, epochs, values]) => epochs || values.map((value, index) => index + 1);
const finite = values => values.filter(value => value !== null);
const isPositive = lines => lines.every(line => finite(line[2]).every(value => value > 0));

// The range of curves of a group, such as losses of training and validation samples.
function rangeOf(lines, group) {
  const lows = lines.map(line => Math.min(...finite(line[2]))), highs = lines.map(line => Math.max(...finite(line[2])));
  return robust(lows, highs, {bottom: group !== "loss"});
}

const overview = data.curves.filter(curve => curve.overview);
const linesOf = group => data.curves.filter(curve => curve.group === group && (curve.overview || group === "loss")).flatMap(curve => curve.lines);

function clippedNetworks() {
  const clipped = new Set();
  overview.forEach(({group, lines}) => {
    const [low, high] = rangeOf(linesOf(group), group);
    lines.forEach(([network, , values]) => {
      if (finite(values).some(value => value < low || value > high)) clipped.add(network);
    });
  });
  return [...clipped];
}

overview.forEach(({title, group, lines}, number) => {
  const hits = lines.flatMap((line, series) => line[2].map((value, index) => {
    const x = epochsOf(line)[index];
    return {network: line[0], series, index, x, y: value, label: `${name(line[0])}: epoch ${x}, ${title} ${short(value)}`};
  })).filter(hit => hit.y !== null);
  const canBeLog = group !== "accuracy" && isPositive(linesOf(group));
  chart(box("curves"), 270, () => ({
    title: titled(title), grid: GRID,
    xAxis: {type: "value", min: "dataMin", max: "dataMax", minInterval: 1, ...styled()},
    yAxis: valueAxis(rangeOf(linesOf(group), group), view.log && canBeLog),
    series: lines.map(line => {
      const [network, , values] = line, own = isColored(network) || network === pointed;
      const stroke = network === pointed ? ownColor(network) : color(network, own ? ownColor(network) : theme.pale);
      const isPale = stroke === theme.pale, isThick = rank(network) || network === pointed;
      return {type: "line", data: epochsOf(line).map((epoch, index) => [epoch, values[index]]), silent: true,
              showSymbol: values.length === 1, symbol: "circle", symbolSize: 5, itemStyle: {color: stroke},
              lineStyle: {color: stroke, width: isPale ? 1 : isThick ? 3 : 1.8, type: isPale ? "solid" : dash(network)},
              emphasis: {lineStyle: {width: 3.5, color: ownColor(network)}},
              z: 2 + (isThick ? 2 : 0) + (slots.has(network) ? 1 : 0)};
    }),
  }), hits, {key: "curve " + number, followsPointer: true});
});

if (overview.length) charts.add({draw: () => controls(clippedNetworks()), resize() {}});

// ---- networks by device ----------------------------------------------------------------------------------------------

function timeline(container, {unit, devices, seconds, bars}, only = null) {
  const shown = only === null ? devices : devices.filter(device => bars.some(bar => bar[0] === only && bar[1] === device));
  const rows = new Map(shown.map((device, row) => [device, row]));
  const row = Math.max(3, Math.min(18, 420 / shown.length));
  const items = bars.filter(bar => rows.has(bar[1]) && (only === null || bar[0] === only));
  return chart(container, row * shown.length + 76, () => ({
    grid: {left: 44, right: 20, top: 8, bottom: 62},
    xAxis: {type: "value", min: 0, max: seconds, ...styled(), axisLabel: {color: theme.soft, formatter: "{value} s", showMaxLabel: false, hideOverlap: true}},
    yAxis: {type: "category", data: shown, inverse: true, axisTick: {show: false}, axisLine: {show: false}, axisLabel: {color: theme.soft}},
    dataZoom: isPrinting() ? [] : [{id: "time", type: "slider", bottom: 6, height: 18, filterMode: "weakFilter", showDataShadow: false,
                labelFormatter: value => `${Math.round(value)} s`, textStyle: {color: theme.soft}}],
    series: [{type: "custom", clip: true, dimensions: ["begin", "device", "end"],
      encode: {x: [0, 2], y: 1}, data: items.map(([, device, begin, end]) => [begin, rows.get(device), end]),
      renderItem(params, api) {
        const [network, , , , , busy] = items[params.dataIndex], crowd = busy !== null;
        const [x, y] = api.coord([api.value(0), api.value(1)]), [end] = api.coord([api.value(2), api.value(1)]);
        const width = Math.max(end - x, 0.4), high = row - 0.6, top = y - high / 2;
        const label = !crowd && row >= 9 && width > 6 * name(network).length + 8;
        const usual = crowd || only !== null || slots.has(network) ? 1 : 0.7;
        return {type: "group", children: [
          {type: "rect", shape: {x, y: top, width, height: high},
           style: {fill: crowd ? "#7d8fa3" : ownColor(network), opacity: only !== null ? 1 : crowd ? busy * opacity(-1, 1) : opacity(network, usual)}},
          {type: "rect", shape: {x, y: top, width: crowd ? 0 : 0.8, height: high}, silent: true,
           style: {fill: "#000", opacity: 0.35}},
          ...label ? [{type: "text", silent: true, x: x + 4, y, style: {text: name(network), fill: "#fff", stroke: "rgba(0,0,0,.45)",
            lineWidth: 2, font: "10px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), items.map(([network, device, begin, end, label]) => ({
    network, label: `${label}: ${unit} ${device}, ${begin.toFixed(1)} to ${end.toFixed(1)} s`})));
}

Object.entries(data.timelines).forEach(([id, content]) => timeline(box(id), content));

// ---- a search --------------------------------------------------------------------------------------------------------

const axis = ({log, low, high, choices}) => choices ? {type: "category", data: choices, ...styled()}
  : {type: log ? "log" : "value", min: low, max: high, ...styled(), axisLabel: {color: theme.soft, hideOverlap: true, formatter: short}};
const format = (key, value) => value === null ? "none" : key.choices ? key.choices[value] : short(value);
const BLUE = () => theme.blue;
// Labels among lines.
const haloed = () => ({nameTextStyle: {color: theme.text}, axisLabel: {
  color: theme.text, hideOverlap: true, textBorderColor: theme.back, textBorderWidth: 3,
  formatter: value => typeof value === "number" ? short(value) : value}});

data.searches.forEach((search, number) => {
  const id = part => `search-${number}-${part}`, {monitor, keys, trials, larger} = search;
  const last = search.improvements.length ? [[search.seconds, search.improvements[search.improvements.length - 1][2]]] : [];
  const value = () => ({type: "value", scale: true, ...styled()});

  // Values far worse than most are drawn at the end of the axis, as hollow triangles.
  const rangeOfValues = values => robust(values, values, {share: 0.75, top: !larger, bottom: larger});
  const clamp = (value, [low, high]) => Math.min(Math.max(value, low), high);
  const isCut = (value, [low, high]) => value < low || value > high;
  const results = finite(trials.map(trial => trial[2])), bests = search.improvements.map(each => each[2]);

  chart(box(id("best")), 250, () => ({
    title: titled(`best ${monitor} so far, by seconds`), grid: GRID,
    xAxis: {type: "value", min: 0, max: search.seconds, ...styled(), axisLabel: {color: theme.soft, showMaxLabel: false, hideOverlap: true}},
    yAxis: valueAxis(robust(bests, bests, {share: 0.75, top: !larger, bottom: larger})),
    series: [{type: "line", step: "end", silent: true, symbol: "circle", symbolSize: 6, lineStyle: {color: BLUE()},
              itemStyle: {color: BLUE()}, data: [...search.improvements.map(([network, seconds, best]) => ({
                value: [seconds, best], itemStyle: {color: color(network, BLUE())}})), ...last]}],
  }), search.improvements.map(([network, x, y, epoch], index) => ({
    network, x, y, series: 0, index, label: `${name(network)}: epoch ${epoch}, ${short(y)} after ${x.toFixed(1)} s`})));

  const {objectives, pareto} = search;
  objectives.slice(1).forEach((objective, index) => {
    const at = point => point[2][index + 1], ends = [Math.min(...pareto.map(at)), Math.max(...pareto.map(at))];
    const front = pareto.filter(point => point[1]).sort((point, next) => at(point) - at(next));
    chart(box(id("pareto")), 280, () => ({
      title: titled(`${objectives[0]} vs. ${objective}`), grid: GRID, yAxis: value(),
      xAxis: {type: ends[0] > 0 && ends[1] > 100 * ends[0] ? "log" : "value", scale: true, ...styled()},
      series: [
        {type: "scatter", silent: true, data: pareto.map(point => ({
          value: [at(point), point[2][0]], symbolSize: (point[1] ? 9 : 6) + 3 * rank(point[0]),
          itemStyle: {color: color(point[0], point[1] ? BLUE() : theme.pale), opacity: opacity(point[0], 0.9)}}))},
        {type: "line", silent: true, symbol: "none", lineStyle: {color: BLUE(), width: 1, type: "dashed"}, z: 1,
         data: objectives.length > 2 ? [] : front.map(point => [at(point), point[2][0]])}],
    }), pareto.map((point, number) => ({network: point[0], x: at(point), y: point[2][0], series: 0, index: number,
      label: `${name(point[0])}${point[1] ? ", on the front" : ""}: ` +
        objectives.map((each, index) => `${each} ${short(point[2][index])}`).join(", ")})));
  });

  const describe = ([network, status, result, values]) => `${name(network)}, ${status}: ${monitor} ${short(result)}; ` +
    keys.map((key, index) => `${key.name} ${format(key, values[index])}`).join(", ");
  const parallel = keys.length > 1 ? box(id("parallel")) : null;
  if (parallel) {
    parallel.style.minWidth = `${Math.min(110 * keys.length, 1100)}px`;
    parallel.parentElement.classList.add("wider");
  }
  chart(parallel, 320, () => {
    const range = rangeOfValues(results), isWide = parallel.clientWidth > 130 * keys.length;
    return {
      parallel: {left: 60, right: 80, top: 44, bottom: 24},
      parallelAxis: [...keys.map((key, dim) => ({dim, name: key.name, ...axis(key), splitLine: {show: false},
                       nameLocation: isWide || dim % 2 ? "end" : "start", ...haloed()})),
                     {dim: keys.length, name: monitor, ...valueAxis(range), inverse: !larger,
                      nameLocation: larger ? "end" : "start", splitLine: {show: false}, ...haloed()}],
      series: [{type: "parallel", smooth: false, inactiveOpacity: 0.03, data: trials.map(([network, status, result, values]) => ({
        value: [...values.map(point => point === null ? "-" : point), clamp(result, range)],
        lineStyle: {color: color(network, slots.has(network) ? ownColor(network) : statusColor(status)),
                    width: rank(network) || slots.has(network) ? 2 : 1, opacity: opacity(network, slots.has(network) ? 0.9 : 0.35)},
      }))}],
    };
  }, trials.map(point => ({network: point[0], label: describe(point)})));

  keys.forEach((key, dim) => {
    const points = trials.filter(point => point[3][dim] !== null), range = () => rangeOfValues(results);
    chart(box(id("keys")), 240, () => ({
      title: titled(`${monitor} vs. ${key.name}`), grid: GRID, xAxis: axis(key), yAxis: valueAxis(range()),
      series: [{type: "scatter", silent: true, symbolSize: 7, emphasis: {scale: 1.8}, data: points.map(point => {
        const fill = color(point[0], statusColor(point[1])), cut = isCut(point[2], range());
        return {value: [point[3][dim], clamp(point[2], range())], symbolSize: 7 + 4 * rank(point[0]), symbol: cut ? "emptyTriangle" : "circle",
                itemStyle: {color: fill, opacity: opacity(point[0], 0.8)}};
      })}],
    }), points.map((point, index) => ({
      network: point[0], x: point[3][dim], y: clamp(point[2], range()), series: 0, index, label: describe(point)})));
  });

  const {rows, epochs} = search.descent, high = Math.max(4, Math.min(16, 640 / rows.length));
  chart(rows.length ? box(id("descent")) : null, high * rows.length + 40, () => ({
    grid: {left: 12, right: 90, top: 6, bottom: 28},
    xAxis: {type: "value", min: 0, max: epochs, minInterval: 1, ...styled()},
    yAxis: {type: "value", min: 0, max: rows.length, inverse: true, show: false},
    series: [{type: "custom", dimensions: ["begin", "row", "end"], encode: {x: [0, 2], y: 1},
      data: rows.map(([, begin, end], row) => [begin, row + 0.5, end]),
      renderItem(params, api) {
        const [network, begin, end, parent, inLine] = rows[params.dataIndex];
        const stroke = color(network, inLine ? BLUE() : "#9a9fa6");
        const to = api.coord([end, api.value(1)]), from = api.coord([begin, api.value(1)]);
        const start = parent === null ? [] : [api.coord([begin, parent + 0.5])];
        return {type: "group", children: [
          {type: "polyline", shape: {points: [...start, from, to]}, style: {stroke, lineWidth: 2, fill: "none"}},
          {type: "circle", shape: {cx: to[0], cy: to[1], r: 2.5}, style: {fill: stroke}},
          ...high >= 11 ? [{type: "text", x: to[0] + 6, y: to[1], style: {
            text: name(network), fill: theme.soft, font: "11px system-ui, sans-serif", textVerticalAlign: "middle"}}] : [],
        ]};
      }}],
  }), rows.map(([network, , , , , label]) => ({network, label})));
});

// ---- tables ----------------------------------------------------------------------------------------------------------

const number = text => text === "" ? -Infinity : Number(text.replace(/ ±.*|[%,]/g, ""));

function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows], text = row => row.cells[column].textContent;
  const isNumber = rows.every(row => !Number.isNaN(number(text(row))));
  rows.sort((a, b) => isNumber ? number(text(a)) - number(text(b))
    : text(a).localeCompare(text(b), undefined, {numeric: true}));
  body.append(...(down ? rows.reverse() : rows));
  [...table.tHead.rows[0].cells].forEach((cell, index) =>
    cell.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending"));
}

const leaderboard = main.querySelector("table");
const leaders = [...leaderboard.tBodies[0].rows].map(row => row.dataset.network).filter(pageOf);

document.querySelectorAll("table").forEach((table, index) => {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.tabIndex = 0;
    cell.onclick = () => {
      sorted[index] = [column, cell.getAttribute("aria-sort") === "ascending"];
      sort(table, ...sorted[index]);
    };
    cell.onkeydown = event => { if (event.key === "Enter") cell.onclick(); };
  });
  if (sorted[index] && sorted[index][0] < table.tHead.rows[0].cells.length) sort(table, ...sorted[index]);
});
document.querySelectorAll("tr[data-network]").forEach(row => {
  const column = [...row.closest("table").tHead.rows[0].cells].findIndex(cell => cell.textContent === "network");
  row.onclick = () => toggle(row.dataset.network);
  if (pageOf(row.dataset.network)) row.cells[column].replaceChildren(link(row.dataset.network));
});
document.querySelectorAll("a.name").forEach(anchor => {  // the mean of several networks has no page
  const {network} = anchor.dataset;
  anchor.replaceWith(pageOf(network) ? link(network) : network);
});

// Says which rows of a long table are in sight, and shows all.
document.querySelectorAll(".table").forEach(frame => {
  const table = frame.firstElementChild, text = element("span"), button = element("button", {className: "act", textContent: "show all rows"});
  const note = element("p", {className: "scroll", hidden: true}, text, " ", button);
  frame.after(note);
  const update = () => {
    const rows = [...table.tBodies[0].rows], {top, bottom} = frame.getBoundingClientRect();
    const head = table.tHead.getBoundingClientRect().height;
    const isLong = frame.scrollHeight > frame.clientHeight + 4, isWide = frame.scrollWidth > frame.clientWidth + 4;
    note.hidden = !isLong && !isWide;
    frame.classList.toggle("wide", isWide);
    frame.classList.toggle("scrolls", isLong && frame.scrollTop + frame.clientHeight < frame.scrollHeight - 4);
    button.hidden = !isLong;
    if (note.hidden) return;
    const seen = rows.map((row, index) => [row.getBoundingClientRect(), index + 1])
      .filter(([place]) => place.bottom > top + head + 4 && place.top < bottom - 8).map(([, row]) => row);
    text.textContent = [
      ...isLong && seen.length ? [`Rows ${seen[0]} to ${seen[seen.length - 1]} of ${rows.length}; scroll for the others.`] : [],
      ...isWide ? ["Scroll sideways for more columns."] : []].join(" ");
  };
  button.onclick = () => { frame.classList.add("all"); update(); };
  frame.addEventListener("scroll", update);
  addEventListener("resize", update);
  frame.update = update;
  frame.closest("details")?.addEventListener("toggle", update);
});
const updateTables = () => document.querySelectorAll(".table").forEach(frame => frame.update && frame.update());

// ---- the page of a network ------------------------------------------------------------------------------------------

function pageOf(network) { return data.pages.networks[data.networks.indexOf(network)]; }
function link(network, text = network) {
  return element("a", {href: "#network=" + encodeURIComponent(network), textContent: text, onclick: event => event.stopPropagation()});
}

let pageCharts = [];

function wantedNetwork() {
  if (!location.hash.startsWith("#network=")) return null;
  try { return decodeURIComponent(location.hash.slice(9)); } catch { return null; }
}

function showPage() {
  const wanted = wantedNetwork();
  const page = wanted === null ? null : pageOf(wanted);
  if (!main.hidden) mainY = scrollY;
  pageCharts.forEach(drawable => drawable.dispose());
  pageCharts = [];
  article.replaceChildren();
  article.hidden = !page;
  main.hidden = Boolean(page);
  showTip(null);
  document.title = page ? `${wanted} - ${document.querySelector("h1").textContent}` : document.querySelector("h1").textContent;
  if (page) fillPage(wanted, page);
  charts.forEach(drawable => drawable.resize());
  follow();
  updateTables();
  scrollTo(0, page ? 0 : mainY);
}

function section(title, ...parts) {
  article.append(element("h2", {textContent: title}), ...parts);
}

function tableOf(headers, rows) {
  const row = (tag, cells) => element("tr", {}, ...cells.map(cell => element(tag, {textContent: cell ?? ""})));
  const table = element("table", {}, element("thead", {}, row("th", headers)), element("tbody", {}, ...rows.map(cells => row("td", cells))));
  return element("div", {className: "table all"}, table);
}

function fillPage(network, page) {
  const index = data.networks.indexOf(network), place = leaders.indexOf(network);
  const neighbor = (offset, text) => leaders[place + offset] === undefined ? [] : [link(leaders[place + offset], text + leaders[place + offset])];
  article.append(element("nav", {}, element("a", {href: "#", textContent: "← all networks"}),
                         ...neighbor(-1, "better: "), ...neighbor(1, "worse: ")), element("h1", {textContent: network}));

  const row = [...leaderboard.tBodies[0].rows].find(each => each.dataset.network === network);
  const cells = Object.fromEntries([...leaderboard.tHead.rows[0].cells].map((cell, at) => [cell.textContent, row ? row.cells[at].textContent : ""]));
  const labels = {best: "best epoch", params: "parameters", s: "seconds", why: "why it ended", from: "began with"};
  const isSetting = header => Object.keys(page.settings).some(setting => setting === header || setting.endsWith("." + header));
  const facts = Object.entries(cells).filter(([header, text]) => text !== "" && header !== "network" && !isSetting(header)
    && !(header === "why" && page.reason));
  if (place >= 0) facts.unshift(["rank", `${place + 1} of ${leaders.length}`]);
  article.append(element("div", {className: "facts"}, ...facts.map(([header, text]) =>
    element("div", {}, element("b", {textContent: text}), element("span", {textContent: labels[header] || header})))));
  if (page.reason) article.append(element("p", {textContent: `Why it ended: ${page.reason}`}));
  if (page.folder) article.append(element("p", {}, element("code", {textContent: page.folder})));

  fillCurves(index, Number(cells.best) || null);
  const bars = data.timelines.timeline.bars.filter(bar => bar[0] === index);
  if (bars.length) {
    const container = element("div", {className: "chart"}), {unit} = data.timelines.timeline;
    section(`Its ${unit}s over time`, container);
    pageCharts.push(timeline(container, data.timelines.timeline, index));
  }
  fillEvaluations(page);
  const own = Object.entries(page.settings), common = Object.entries(data.pages.common);
  section("Settings", own.length ? tableOf(["setting", "value"], own) : element("p", {className: "note", textContent: "It has the settings of all networks."}));
  if (common.length) article.append(element("details", {open: !own.length}, element("summary", {textContent: "settings of all networks"}), tableOf(["setting", "value"], common)));
}

function fillCurves(index, bestEpoch) {
  const groups = [...new Set(data.curves.map(curve => curve.group))].map(group => data.curves.filter(curve => curve.group === group)
    .map(curve => ({...curve, line: curve.lines.find(line => line[0] === index)})).filter(curve => curve.line)).filter(curves => curves.length);
  if (!groups.length) {
    const text = "The report has no curves of this network; its history.csv has them, once it has finished an epoch.";
    article.append(element("p", {className: "note", textContent: text}));
    return;
  }
  const grid = element("div", {className: "grid"});
  const looks = {training: {color: () => theme.palette[1], type: [6, 4]}, validation: {color: () => theme.blue, type: "solid"}, "": {color: () => theme.blue, type: "solid"}};
  section("Curves", element("p", {className: "note", textContent: "Validation is solid, training dashed" + (bestEpoch ? "; the vertical line is the best epoch." : ".")}),
          element("div", {}, logButton()), grid);
  groups.forEach(curves => {
    const container = grid.appendChild(element("div", {className: "chart"})), {group} = curves[0], lines = curves.map(({line}) => line);
    const hits = curves.flatMap(({title, line}, series) => line[2].map((y, at) => (
      {network: null, series, index: at, x: epochsOf(line)[at], y, label: `epoch ${epochsOf(line)[at]}, ${title} ${short(y)}`}))).filter(hit => hit.y !== null);
    const values = lines.flatMap(line => finite(line[2]));
    pageCharts.push(chart(container, 260, () => ({
      title: titled(curves.length > 1 ? group : curves[0].title), grid: GRID,
      xAxis: {type: "value", min: "dataMin", max: "dataMax", minInterval: 1, ...styled()},
      yAxis: valueAxis([Math.min(...values), Math.max(...values)], view.log && group !== "accuracy" && isPositive(lines)),
      series: curves.map(({part, line}, at) => ({
        type: "line", data: epochsOf(line).map((epoch, at) => [epoch, line[2][at]]), silent: true, showSymbol: line[2].length === 1,
        itemStyle: {color: looks[part].color()}, lineStyle: {color: looks[part].color(), width: 2, type: looks[part].type},
        markLine: at || !bestEpoch ? undefined : {silent: true, symbol: "none", label: {show: false},
          lineStyle: {color: theme.soft, type: "dotted"}, data: [{xAxis: bestEpoch}]},
      })),
    }), hits, {key: `page ${index} ${group}`}));
  });
}

function logButton() {
  const button = element("button", {className: "act"});
  const label = () => { button.textContent = view.log ? "linear axes" : "log axes"; };
  button.onclick = () => { view.log = !view.log; clearZooms(); label(); follow(); };
  label();
  return button;
}

function fillEvaluations(page) {
  if (page.unread) section("Predictions", element("p", {className: "note", textContent: "The saved outputs were not read, to save time: run fleet report."}));
  (page.evaluations || []).forEach(each => {
    if (each.kind === "classes" && each.whole) section(`Confusion matrix, ${each.title}`, ...matrix(each));
    else if (each.kind === "classes") section(`Most frequent errors, ${each.title}`, tableOf(["class", "predicted as", "samples"],
      each.cells.map(([actual, predicted, count]) => [each.names[actual], each.names[predicted], count])));
    else if (each.kind === "labels") section(`Labels, ${each.title}`, tableOf(["label", "samples", "recall", "precision"], each.rows));
    else if (each.points.length) residuals(each);
  });
}

function matrix({names, cells, accuracy}) {
  const counts = new Map(cells.map(([actual, predicted, count]) => [`${actual} ${predicted}`, count]));
  const totals = names.map((_, actual) => names.reduce((sum, _, predicted) => sum + (counts.get(`${actual} ${predicted}`) || 0), 0));
  const head = element("tr", {}, element("th", {textContent: "class"}), ...names.map(each => element("th", {textContent: each})), element("th", {textContent: "recall"}));
  const body = names.map((each, actual) => element("tr", {}, element("th", {textContent: each}), ...names.map((other, predicted) => {
    const count = counts.get(`${actual} ${predicted}`) || 0, share = count / (totals[actual] || 1);
    const cell = element("td", {textContent: count || "", title: `${each}, predicted as ${other}: ${count}`});
    const hue = actual === predicted ? "78,121,167" : "214,60,50";
    if (count) cell.style.background = `rgba(${hue},${(0.12 + 0.7 * share).toFixed(2)})`;
    return cell;
  }), element("td", {textContent: totals[actual] ? `${(100 * (counts.get(`${actual} ${actual}`) || 0) / totals[actual]).toFixed(1)}%` : ""})));
  return [element("p", {className: "note", textContent: `Rows are the true classes, columns the predicted ones. ${(100 * accuracy).toFixed(2)}% are right.`}),
          element("div", {className: "table all matrix"}, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)))];
}

function residuals({title, name: value, points, error, r2}) {
  const container = element("div", {className: "chart"}), ends = points.flat(), range = [Math.min(...ends), Math.max(...ends)];
  const numbers = [...error === null ? [] : [`Mean absolute error ${short(error)}`], ...r2 === null ? [] : [`R² ${short(r2)}`]].join(", ");
  section(`Predicted and true ${value || "values"}, ${title}`, element("p", {className: "note", textContent: `${numbers}. On the line, both are equal.`}),
          element("div", {className: "grid"}, container));
  pageCharts.push(chart(container, 360, () => ({
    title: titled("predicted, by true value"), grid: GRID, xAxis: valueAxis(range), yAxis: valueAxis(range),
    series: [{type: "scatter", silent: true, symbolSize: 5, data: points, itemStyle: {color: theme.blue, opacity: 0.6}},
             {type: "line", silent: true, symbol: "none", data: range.map(end => [end, end]), lineStyle: {color: theme.soft, width: 1}}],
  }), points.map(([x, y], index) => ({network: null, x, y, series: 0, index, label: `true ${short(x)}, predicted ${short(y)}, error ${short(y - x)}`})),
  {key: "residuals " + title + value}));
}

// ---- print ----------------------------------------------------------------------------------------------------------

// Splits a table that is wider than the page into several, each with the first column.
function split(frame) {
  const table = frame.firstElementChild;
  if (!table.tHead || table.offsetWidth <= document.body.clientWidth) return;
  const widths = [...table.tHead.rows[0].cells].map(cell => cell.offsetWidth), groups = [];
  widths.slice(1).forEach((width, index) => {
    const group = groups[groups.length - 1];
    if (group && group.width + width <= document.body.clientWidth) { group.columns.push(index + 1); group.width += width; }
    else groups.push({columns: [index + 1], width: widths[0] + width});
  });
  frame.classList.add("unsplit");
  groups.reverse().forEach(({columns}) => {
    const copy = table.cloneNode(true);
    [...copy.rows].forEach(row => [...row.cells].forEach((cell, column) => { if (column && !columns.includes(column)) cell.remove(); }));
    frame.after(element("div", {className: "split"}, copy));
  });
}

function print(begins) {
  if (isPrinting() === begins) return;
  document.documentElement.classList.toggle("printing", begins);
  if (begins) document.querySelectorAll(".table").forEach(split);
  else {
    document.querySelectorAll(".split").forEach(each => each.remove());
    document.querySelectorAll(".unsplit").forEach(each => each.classList.remove("unsplit"));
  }
  charts.forEach(drawable => drawable.resize());
  follow();
}

addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
addEventListener("resize", () => charts.forEach(drawable => drawable.resize()));
addEventListener("hashchange", showPage);
scheme.addEventListener("change", follow);

document.querySelectorAll("details").forEach((each, index) => { if ((saved.open || [])[index]) each.open = true; });
showPage();
})();
