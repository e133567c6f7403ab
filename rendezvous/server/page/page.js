/* The page at /. It asks GET v1/status, by events where they come through, and draws what changed.
 * Texts of jobs, hosts and workers are strangers' words: they reach the document by textContent and
 * setAttribute alone, with control characters made visible. */
'use strict';

/* --- small things --- */

const $ = id => document.getElementById(id);
const BASE = location.pathname.replace(/(v1\/)?[^/]*$/, '');
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

function clean(s) {
  return String(s).replace(/\u001b\[[0-9;]*m/g, '')
    .replace(HIDDEN, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}
function put(el, text) {
  if (el.said !== text) {
    el.said = text;
    el.textContent = clean(text);
  }
}
function set(el, name, value) {
  value = clean(value);
  if (el.getAttribute(name) !== value) el.setAttribute(name, value);
}
function make(tag, cls, text) {
  const el = document.createElement(tag);
  if (cls) el.className = cls;
  if (text !== undefined) put(el, text);
  return el;
}
function show(el, yes) { if (el.hidden === yes) el.hidden = !yes; }
const two = n => String(n).padStart(2, '0');
const big = n => n.toLocaleString('en');
const plural = (n, what) => big(n) + ' ' + what + (n === 1 ? '' : 's');
const upper = s => s.charAt(0).toUpperCase() + s.slice(1);
function clock(ms, withDay) {
  const d = new Date(ms);
  const t = two(d.getHours()) + ':' + two(d.getMinutes()) + ':' + two(d.getSeconds());
  return withDay ? d.getFullYear() + '-' + two(d.getMonth() + 1) + '-' + two(d.getDate()) + ' ' + t : t;
}
function span(s) {
  if (s < 0.0995) return Math.round(s * 1000) + ' ms';
  if (s < 59.95) return s.toFixed(s < 10 ? 1 : 0) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.floor(s % 60) + ' s';
  if (s < 172800) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor(s % 86400 / 3600) + ' h';
}
const at = text => text ? Date.parse(text) : 0;

/* A dl of [name, value] pairs; empty values are left out. */
function facts(dl, pairs) {
  pairs = pairs.filter(p => p[1] !== null && p[1] !== undefined && p[1] !== '');
  while (dl.children.length > pairs.length) dl.lastChild.remove();
  pairs.forEach(([name, value], i) => {
    let div = dl.children[i];
    if (!div) {
      div = make('div');
      div.append(make('dt'), make('dd'));
      dl.append(div);
    }
    put(div.firstChild, name);
    put(div.lastChild, value);
  });
}

/* One of several choices, as buttons. */
function choices(box, names, chosen, choose) {
  const buttons = names.map(name => {
    const b = make('button', '', name);
    b.type = 'button';
    b.onclick = () => { press(name); choose(name); };
    box.append(b);
    return b;
  });
  function press(name) { buttons.forEach(b => set(b, 'aria-pressed', b.said === name)); }
  press(chosen);
}

/* A list of which only the rows in view are in the document. Asking for sizes while drawing would lay out the whole page. */
class Rows {
  constructor(box, height, build, fill) {
    Object.assign(this, {box, height, build, fill, items: [], rows: new Map(), spare: []});
    this.tall = make('div');
    this.tall.style.position = 'relative';
    this.tall.setAttribute('role', 'presentation');
    box.append(this.tall);
    this.top = 0;
    this.view = 320;
    box.addEventListener('scroll', () => { this.top = box.scrollTop; this.draw(); }, {passive: true});
    new ResizeObserver(sizes => { this.view = sizes[0].contentRect.height; this.draw(); }).observe(box);
  }
  set(items) {
    if (items.length !== this.items.length) this.tall.style.height = items.length * this.height + 'px';
    this.items = items;
    this.draw();
  }
  draw() {
    const from = Math.max(0, Math.floor(this.top / this.height) - 4);
    const to = Math.min(this.items.length, Math.ceil((this.top + this.view) / this.height) + 4);
    for (const [i, el] of this.rows)
      if (i < from || i >= to) {
        this.rows.delete(i);
        el.remove();
        this.spare.push(el);
      }
    for (let i = from; i < to; i++) {
      let el = this.rows.get(i);
      if (!el) {
        el = this.spare.pop() || this.build();
        el.style.top = i * this.height + 'px';
        this.rows.set(i, el);
        let next = this.tall.firstChild; /* In order, for those who read or tab through it. */
        while (next && parseFloat(next.style.top) < i * this.height) next = next.nextSibling;
        this.tall.insertBefore(el, next);
      }
      this.fill(el, this.items[i], i);
    }
  }
}

/* --- what is known --- */

let status = null;
let skew = 0;         /* The server's clock, less ours, in ms. */
let job = null;       /* The one shown. */
let wanted = new URLSearchParams(location.hash.slice(1));
const serverNow = () => Date.now() + skew;

/* --- connection: events, or a question each second --- */

const net = {text: null, due: false, byEvents: false, rest: 0, polling: false, token: '', again: () => {}};

function mode(name, text) {
  set($('live'), 'data-mode', name);
  put($('live'), text);
}
function arrived(text, byEvents) {
  net.byEvents = byEvents;
  net.text = text;
  show($('lost'), false);
  mode(byEvents ? 'live' : 'poll', byEvents ? 'live' : 'asked each second');
  if (!net.due) {
    net.due = true;
    if (net.rest < Infinity) later();
  }
}
function later() {
  setTimeout(() => requestAnimationFrame(draw), Math.max(0, net.rest - performance.now()));
}
/* Whatever came meanwhile, the newest is drawn; and drawing takes at most a third of the time. */
function draw() {
  const began = performance.now();
  net.due = false;
  net.rest = Infinity;
  take();
  setTimeout(() => { /* Behind layout and paint, which are part of it. */
    const ended = performance.now();
    net.rest = ended + (ended - began > 30 ? Math.min(2 * (ended - began), 500) : 0);
    if (net.due) later();
  });
}
function lost(why) {
  mode('lost', 'no answer');
  put($('lost'), why + ' What is shown is from ' + (status ? clock(at(status.now)) : 'before') + '; trying again.');
  show($('lost'), true);
}
/* An answer's text; its sentence as an error where it is a refusal. */
async function get(path) {
  const r = await fetch(BASE + path, {...options(), signal: AbortSignal.timeout(10000)});
  const text = await r.text();
  if (r.ok) return text;
  let why = 'The server answers ' + r.status;
  try { why = upper(JSON.parse(text).error); } catch (e) { /* No sentence in it. */ }
  throw Object.assign(new Error(why + '.'), {code: r.status});
}
const options = () => ({cache: 'no-store', headers: net.token ? {Authorization: 'Bearer ' + net.token} : {}});

/* Server-sent events, read by hand: EventSource can send no token, and hides the heartbeats that tell a quiet connection from a dead one. */
async function stream() {
  const cut = new AbortController();
  let timer = setTimeout(() => cut.abort(), QUIET_MS);
  try {
    const r = await fetch(BASE + 'v1/events', {...options(), signal: cut.signal});
    if (!r.ok || !/event-stream/.test(r.headers.get('Content-Type'))) return cut.abort();
    const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = '', from = 0; ;) {
      const {value, done} = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => cut.abort(), QUIET_MS);
      text += value;
      for (let end; (end = text.indexOf('\n\n', from)) >= 0; from = 0) {
        const m = /^event: status\n(?:.*\n)*?data: (.*)$/m.exec(text.slice(0, end));
        text = text.slice(end + 2);
        if (m) arrived(m[1], true);
      }
      from = Math.max(0, text.length - 1);
    }
  } finally {
    clearTimeout(timer);
  }
}
const QUIET_MS = 25000; /* A heartbeat comes each 10 s. */
async function listen() {
  for (;;) {
    await stream().catch(() => {});
    const worked = net.byEvents;
    net.byEvents = false;
    poll();
    await Promise.race([wait(worked ? 1000 : 30000), /* Not served, too many, or held back. */
      new Promise(done => { net.again = done; })]);
  }
}
const wait = ms => new Promise(done => setTimeout(done, ms));
async function ask() {
  try {
    const text = await get('v1/status');
    if (!net.byEvents) arrived(text, false);
  } catch (e) {
    if (e.code !== 401) return lost(e.code ? e.message : 'No answer from the server.');
    lost(net.token ? 'That is not the server\u2019s token.' : 'This server shows its state to who has its token.');
    $('token-text').type = 'password';
    show($('token'), true);
    await new Promise(given => { $('token').onsubmit = e => { e.preventDefault(); given(); }; });
    net.token = $('token-text').value.trim();
    $('token-text').value = '';
    show($('token'), false);
    net.again();
  }
}
/* Until an event comes. */
async function poll() {
  if (net.polling) return;
  net.polling = true;
  while (!net.byEvents) {
    await ask();
    await wait(1000);
  }
  net.polling = false;
}

/* --- a new status --- */

function take() {
  status = JSON.parse(net.text);
  skew = at(status.now) - Date.now();
  job = chosen();
  drawServer();
  drawSide();
  show($('empty'), !job);
  show($('job'), !!job);
  if (!job) return drawEmpty();
  follow(job);
  drawLead();
  drawGrid();
  drawLine();
  drawRanks();
  askIncidents();
}
function chosen() {
  const same = status.jobs.filter(j => j.id === wanted.get('job'));
  return same.find(j => j.created_at === wanted.get('at')) || same[0] || status.jobs[0] || null;
}
const keyOf = j => j.id + ' ' + j.created_at;
const isOver = j => j.state === 'succeeded' || j.state === 'failed' || j.state === 'stopped';
const TONES = {running: 'run', succeeded: 'done', failed: 'bad', gathering: 'wait', recovering: 'wait', stopping: 'wait'};

function drawServer() {
  const s = status.server;
  put($('server'), 'rdzv-server ' + status.version + ' at ' + location.host + ', up ' + span(status.uptime_s) + ', ' +
    plural(s.agents, 'agent') + (s.state && s.state !== 'kept' ? ', state ' + s.state : ''));
}
function count(list, of) {
  const n = new Map();
  for (const x of list) n.set(of(x), (n.get(of(x)) || 0) + 1);
  return [...n].map(([name, k]) => big(k) + ' ' + name).join(', ');
}

/* --- jobs, queue, pool --- */

const jobRows = new Rows($('jobs'), 44, () => {
  const a = make('a', 'row');
  const top = make('span');
  top.append(make('span', 'badge'), make('span'));
  a.append(top, make('small'));
  return a;
}, (a, j) => {
  const h = '#' + new URLSearchParams({job: j.id, at: j.created_at || ''});
  if (a.said !== h) { a.said = h; a.href = h; }
  put(a.firstChild.firstChild, j.state);
  set(a.firstChild.firstChild, 'data-tone', TONES[j.state]);
  put(a.firstChild.lastChild, j.id);
  put(a.lastChild, j.sentence);
  if (job && keyOf(j) === keyOf(job)) set(a, 'aria-current', 'true');
  else a.removeAttribute('aria-current');
});
const plainRow = () => {
  const el = make('div', 'row');
  el.setAttribute('role', 'listitem');
  const top = make('span');
  top.append(make('span', 'badge'), make('span'));
  el.append(top, make('small'));
  return el;
};
function fillPlain(el, word, tone, name, more) {
  put(el.firstChild.firstChild, word);
  set(el.firstChild.firstChild, 'data-tone', tone);
  put(el.firstChild.lastChild, name);
  put(el.lastChild, more);
}
const queueRows = new Rows($('queue'), 44, plainRow, (el, q, i) =>
  fillPlain(el, String(i + 1), 'wait', q.name || q.id, q.waits_for || q.state));
const POOL_TONES = {idle: 'done', busy: 'run', draining: 'wait', away: 'bad'};
const poolRows = new Rows($('pool'), 44, plainRow, (el, n) =>
  fillPlain(el, n.state, POOL_TONES[n.state] || 'wait', n.host, (n.slots - n.slots_free) + ' of ' + plural(n.slots, 'slot') +
    ' taken' + (n.gpus ? ', ' + (n.gpus_free || []).length + ' of ' + plural(n.gpus, 'GPU') + ' free' : '') +
    (n.jobs && n.jobs.length ? ': ' + n.jobs.join(', ') : '')));

function drawSide() {
  const pool = status.pool || {};
  const nodes = pool.nodes || [];
  const queue = pool.queue || [];
  const any = status.jobs.length + queue.length + nodes.length > 0;
  show($('side'), any);
  $('frame').className = any ? 'frame' : 'frame bare';
  show($('jobs-box'), status.jobs.length > 0);
  put($('jobs-sum'), count(status.jobs, j => j.state));
  jobRows.set(status.jobs);
  show($('queue-box'), queue.length > 0);
  put($('queue-sum'), queue.length + ' waiting');
  queueRows.set(queue);
  show($('pool-box'), nodes.length > 0);
  put($('pool-sum'), count(nodes, n => n.state));
  poolRows.set(nodes);
}
$('jobs').addEventListener('keydown', e => {
  const step = {ArrowDown: 1, ArrowUp: -1}[e.key];
  if (!step || !e.target.matches('a')) return;
  const next = step > 0 ? e.target.nextSibling : e.target.previousSibling;
  if (next) next.focus();
  e.preventDefault();
});

function drawEmpty() {
  const where = location.host;
  put($('first-line'), 'node-agent --rdzv=' + where + ' --rdzv-id=first --nnodes=2 --nproc-per-node=2 train.py');
  put($('one-line'), 'node-agent --rdzv=' + where + ' --rdzv-id=first --nnodes=1 --nproc-per-node=2 train.py');
  show($('pool-line-box'), !!(status.pool && status.pool.nodes && status.pool.nodes.length));
  put($('pool-line'), 'muster run -r ' + where + ' --nnodes=1 --nproc-per-node=2 -- ./train.py');
  document.title = 'muster';
}

/* --- the sentence --- */

function whatNext(j) {
  const last = shownIncidents().at(-1);
  const left = j.max_restarts - j.restarts_spent;
  if (j.state === 'succeeded' || j.state === 'stopped') return 'Nothing: the job is over.';
  if (j.state === 'failed') return last ? upper(last.reason) + '.' : 'Nothing: the job is over.';
  if (j.state !== 'running' && last && !last.next_at) return upper(last.reason) + '.';
  if (j.state === 'gathering' || j.state === 'recovering') return 'A round begins when enough nodes are here.';
  if (j.state === 'stopping') return 'Another round begins, or the job ends, when nothing of this one is left.';
  return left > 0 ? 'If a worker fails, the group starts again: ' + big(left) + ' of ' + plural(j.max_restarts, 'restart') + ' left.'
    : 'If a worker fails, the job ends: ' + (j.max_restarts ? 'all restarts are spent.' : 'it has no restarts.');
}
function drawLead() {
  const j = job;
  const spares = j.nodes.filter(n => n.workers.length === 0).length;
  put($('badge'), j.state);
  set($('badge'), 'data-tone', TONES[j.state]);
  put($('job-id'), j.id);
  put($('sentence'), upper(j.sentence) + '.');
  show($('first-box'), !!j.last_cause);
  if (j.last_cause)
    put($('first'), upper(j.last_cause.sentence) + ' (round ' + j.last_cause.round +
      (j.last_cause.at ? ', ' + clock(at(j.last_cause.at)) : '') + ')' +
      (j.consequences ? '; ' + plural(j.consequences, 'failure') + ' followed from it.' : '.'));
  put($('next'), whatNext(j));
  facts($('facts'), [
    ['Round', j.round || 'none yet'], ['Workers', big(j.world)], ['Nodes', (j.nodes.length - spares) + ' of ' +
      (j.nodes_min === j.nodes_max ? j.nodes_min : j.nodes_min + ' to ' + j.nodes_max)],
    ['Spares', spares ? big(spares) : ''], ['Restarts spent', j.restarts_spent + ' of ' + j.max_restarts],
    ['Step', speed.most >= 0 ? big(speed.most) : ''], ['Steps a second', speed.rate > 0 ? speed.rate.toPrecision(3) : ''],
    ['Behind', speed.most >= 0 ? big(speed.behind) : ''],
    [isOver(j) ? 'Ran for' : 'Round for', runs(j)]]);
  document.title = j.id.slice(0, 40) + ': ' + j.state + ' \u00b7 muster';
}
function runs(j) {
  const from = at(isOver(j) ? j.created_at : j.round_started_at);
  return from ? span(((isOver(j) ? at(j.ended_at) : at(status.now)) - from) / 1000) : '';
}

/* --- progress: who is behind --- */

/* Beats tell of steps once a second, each node's at its own time: so behind is who lacks more than
 * what the fastest rank does in two seconds. */
const LATE_S = 2;
let speed = {key: '', most: -1, least: -1, rate: 0, late: Infinity, behind: 0, past: []};

function follow(j) {
  const key = keyOf(j) + ' ' + j.round;
  if (speed.key !== key) speed = {key, past: [], rate: 0};
  let most = -1;
  let least = Infinity;
  for (const n of j.nodes)
    for (const w of n.workers)
      if (w.step !== null && w.step !== undefined) {
        if (w.step > most) most = w.step;
        if (w.step < least) least = w.step;
      }
  const now = at(status.now) / 1000;
  const past = speed.past;
  if (!past.length || past.at(-1)[1] !== most) past.push([now, most]);
  while (past.length > 2 && now - past[0][0] > 15) past.shift();
  const took = now - past[0][0];
  speed.most = most;
  speed.least = most < 0 ? -1 : least;
  speed.rate = took > 1.5 ? (most - past[0][1]) / took : 0;
  speed.late = took > 1.5 ? Math.max(3, LATE_S * speed.rate) : Infinity;
  speed.behind = 0;
  if (most >= 0)
    for (const n of j.nodes)
      for (const w of n.workers)
        if (w.state === 'running' && lag(w) > speed.late) speed.behind++;
}
const lag = w => w.step === null || w.step === undefined || speed.most < 0 ? 0 : speed.most - w.step;

/* --- the grid --- */

/* state: its letter, and what it means. A running worker shows its rank where there is room. */
const CELLS = {
  running: ['', 'running'], behind: ['<', 'behind the fastest'], silent: ['!', 'without a sign of life'], starting: ['S', 'starting'],
  stopping: ['E', 'being ended'], succeeded: ['D', 'done'], failed: ['F', 'failed'], killed: ['K', 'killed by a signal'],
  unknown: ['?', 'not known'], spare: ['\u00b7', 'spare']
};
const grid = {tiles: new Map(), order: [], list: [], size: '', focus: null, pinned: null, hover: null};

function cellState(w) {
  if (!w) return 'spare';
  if (w.state !== 'running') return CELLS[w.state] ? w.state : 'unknown';
  if (w.silent_since) return 'silent';
  return lag(w) > speed.late ? 'behind' : 'running';
}
function tagOf(n) {
  if (n.drain) return 'leaves';
  if (n.state === 'running' && !n.connected) return 'not heard';
  if (n.state === 'waiting') return n.workers.length ? '' : 'spare';
  return ['running', 'starting', 'finished', 'stopping', 'stopped'].includes(n.state) ? '' : n.state;
}
function newTile() {
  const el = make('div', 'tile');
  const who = make('span', 'who');
  const rank = make('b');
  const host = make('span', 'host');
  const cells = make('span', 'cells');
  const tag = make('span', 'tag');
  el.setAttribute('role', 'row');
  who.setAttribute('role', 'rowheader');
  cells.setAttribute('role', 'presentation');
  who.append(rank, host, tag);
  el.append(who, cells);
  return {el, who, rank, host, cells, tag, all: [], node: null};
}
function newCell(tile, local) {
  const el = make('span', 'c');
  el.setAttribute('role', 'gridcell');
  el.tabIndex = -1;
  el.tile = tile;
  el.local = local;
  tile.cells.append(el);
  return el;
}
function sizeGrid(most) {
  const cells = job.nodes.length * most;
  const size = cells <= 160 ? 'large' : cells <= 1024 ? 'medium' : 'small';
  const key = size + ' ' + Math.min(most, 16);
  if (grid.size === key) return;
  grid.size = key;
  const px = {large: 26, medium: 17, small: 11}[size];
  const who = {large: 132, medium: 120, small: 64}[size];
  const s = $('grid').style;
  $('grid').className = 'grid ' + size;
  s.setProperty('--cell', px + 'px');
  s.setProperty('--letter', {large: 10, medium: 9, small: 8}[size] + 'px');
  s.setProperty('--who', who + 'px');
  s.setProperty('--tile', who + 12 + Math.min(most, 16) * (px + (size === 'small' ? 1 : 2)) + 4 + 'px');
}
function drawCell(el, n, w, failed) {
  const state = cellState(w);
  const first = failed !== null && w && w.rank === failed;
  const text = state === 'running' ? (grid.size[0] === 'l' ? String(w.rank) : '') : CELLS[state][0];
  const rank = w ? w.rank : -1;
  grid.counts[state]++;
  if (el.state === state && el.first === first && el.rank === rank && el.said === text) return;
  Object.assign(el, {state, first, rank});
  el.className = 'c ' + state + (first ? ' first' : '');
  put(el, text);
  el.setAttribute('aria-label', (w ? 'rank ' + w.rank + ' ' : '') + CELLS[state][1] + (first ? ', failed first' : ''));
}
function drawTile(t, n, failed) {
  const count = n.workers.length || Math.min(n.workers_count, 512);
  t.node = n;
  put(t.rank, n.node_rank === null ? '\u2013' : String(n.node_rank));
  put(t.host, n.host);
  put(t.tag, tagOf(n));
  if (t.who.title !== n.host) t.who.title = clean(n.host);
  while (t.all.length < count) t.all.push(newCell(t, t.all.length));
  while (t.all.length > count) {
    const el = t.all.pop();
    if (grid.focus === el) grid.focus = null;
    if (grid.pinned === el) grid.pinned = null;
    el.remove();
  }
  for (let i = 0; i < count; i++) drawCell(t.all[i], n, n.workers[i], failed);
}
function drawGrid() {
  const c = job.last_cause;
  const failed = c && c.rank !== null && c.round === job.round ? c.rank : null;
  const seen = new Set();
  grid.counts = {};
  for (const state in CELLS) grid.counts[state] = 0;
  let most = 1;
  for (const n of job.nodes) most = Math.max(most, n.workers.length || n.workers_count);
  sizeGrid(most);
  grid.list = job.nodes.map((n, i) => {
    let key = keyOf(job) + ' ' + n.id;
    if (seen.has(key)) key += ' ' + i;
    seen.add(key);
    let t = grid.tiles.get(key);
    if (!t) grid.tiles.set(key, t = newTile());
    drawTile(t, n, failed);
    return t;
  });
  for (const [key, t] of grid.tiles)
    if (!seen.has(key)) {
      grid.tiles.delete(key);
      t.el.remove();
      if (grid.focus && grid.focus.tile === t) grid.focus = null;
      if (grid.pinned && grid.pinned.tile === t) grid.pinned = null;
    }
  grid.list.forEach((t, i) => {
    if (t.index !== i) { t.index = i; t.el.setAttribute('aria-rowindex', i + 1); }
    if ($('grid').children[i] !== t.el) $('grid').insertBefore(t.el, $('grid').children[i] || null);
  });
  set($('grid'), 'aria-rowcount', grid.list.length);
  for (const li of $('legend').children) {
    show(li, grid.counts[li.state] > 0);
    put(li.lastChild, big(grid.counts[li.state]) + ' ' + CELLS[li.state][1]);
  }
  if (!grid.focus && grid.list.length && grid.list[0].all.length) rove(grid.list[0].all[0], false);
  inspect();
}
/* One cell is in the tab order: the one that had the focus last. */
function rove(el, focus) {
  if (grid.focus) grid.focus.tabIndex = -1;
  grid.focus = el;
  el.tabIndex = 0;
  if (focus) el.focus();
}
const HINT = 'A row is a node, a cell a worker: point at one, or walk with the arrow keys; Enter keeps it in view.';
function inspect() {
  const el = grid.hover || (document.activeElement && document.activeElement.tile ? document.activeElement : null) || grid.pinned;
  if (!el || !el.isConnected) return put($('inspect'), HINT);
  const n = el.tile.node;
  const w = n.workers[el.local];
  const parts = [w ? 'Rank ' + w.rank : 'Spare', 'node ' + n.host, 'local rank ' + el.local];
  if (w) {
    parts.push(CELLS[cellState(w)][1] + (w.exit_code ? ' with status ' + w.exit_code : '') + (w.signal_name ? ', ' + w.signal_name : ''));
    if (w.pid) parts.push('pid ' + w.pid);
    if (w.step !== null) parts.push('step ' + big(w.step) + (lag(w) ? ', ' + big(lag(w)) + ' behind' : ''));
    if (w.silent_since) parts.push('silent since ' + clock(at(w.silent_since)));
  } else {
    parts.push(n.state);
  }
  if (n.unhealthy) parts.push('health check: ' + n.unhealthy.text);
  const last = (n.failures || []).at(-1);
  if (last) parts.push(plural(n.failures.length, 'failure') + ' began here, the last in round ' + last.round + ': ' + last.sentence);
  if (n.drain) parts.push('leaves: ' + n.drain.reason);
  if (n.gpus) parts.push(plural(n.gpus, 'GPU') + ' on its node');
  parts.push('heard ' + span(n.heard_ms_ago / 1000) + ' ago');
  put($('inspect'), parts.join(' \u00b7 '));
}
function pin(el) {
  if (grid.pinned) grid.pinned.removeAttribute('aria-selected');
  grid.pinned = grid.pinned === el ? null : el;
  if (grid.pinned) el.setAttribute('aria-selected', 'true');
  inspect();
}
const ARROWS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -8], PageDown: [0, 8], Home: [-1e9, 0], End: [1e9, 0]};
function walk(el, [dx, dy], all) {
  const last = grid.list.length - 1;
  const columns = getComputedStyle($('grid')).gridTemplateColumns.split(' ').length;
  let row = el.tile.index;
  let col = el.local + dx;
  if (all) row = dx < 0 ? 0 : last;
  else if (Math.abs(dx) === 1 && col < 0 && row > 0) { row--; col = 1e9; }
  else if (Math.abs(dx) === 1 && col >= el.tile.all.length && row < last) { row++; col = 0; }
  if (dy) row = row + dy * columns;
  if (dy && (row < 0 || row > last) && Math.abs(dy) === 1) return el;
  const t = grid.list[Math.max(0, Math.min(last, row))];
  return t.all[Math.max(0, Math.min(t.all.length - 1, col))] || el;
}
$('grid').addEventListener('keydown', e => {
  if (!e.target.tile) return;
  if (ARROWS[e.key]) rove(walk(e.target, ARROWS[e.key], e.ctrlKey && /Home|End/.test(e.key)), true);
  else if (e.key === 'Enter' || e.key === ' ') pin(e.target);
  else return;
  e.preventDefault();
});
$('grid').addEventListener('focusin', inspect);
$('grid').addEventListener('focusout', () => setTimeout(inspect));
$('grid').addEventListener('click', e => { if (e.target.tile) { rove(e.target, true); pin(e.target); } });
$('grid').addEventListener('mouseover', e => { grid.hover = e.target.tile ? e.target : null; inspect(); });
$('grid').addEventListener('mouseleave', () => { grid.hover = null; inspect(); });

for (const [state, [letter]] of Object.entries(CELLS)) {
  const li = make('li');
  li.state = state;
  li.append(make('span', 'c ' + state, letter), make('span'));
  $('legend').append(li);
}

/* --- incidents --- */

const inc = {key: '', of: '', list: [], left: 0, busy: false, asked: 0, picked: null};
const shownIncidents = () => job && inc.of === keyOf(job) ? inc.list : [];
const newest = () => status.jobs.find(j => j.id === job.id) === job;

/* What a change of it brings a new record, or new times in the last one. */
function incidentKey() {
  let busy = 0;
  for (const n of job.nodes) if (n.state === 'starting' || n.state === 'stopping') busy++;
  return [keyOf(job), job.state, job.round, job.restarts, job.consequences, job.last_cause && job.last_cause.at, busy > 0, speed.most >= 0].join(' ');
}
async function askIncidents() {
  const key = incidentKey();
  if (inc.of !== keyOf(job)) {
    Object.assign(inc, {of: keyOf(job), list: [], left: 0, picked: null, key: ''});
    drawIncidents();
  }
  if (inc.busy || inc.key === key || !newest()) return;
  inc.busy = true;
  const of = inc.of;
  try {
    const answer = JSON.parse(await get('v1/jobs/' + encodeURIComponent(job.id) + '/incidents'));
    if (inc.of === of) {
      inc.key = key;
      inc.list = answer.incidents;
      inc.left = answer.left_out;
      drawIncidents();
      drawLead();
      drawLine();
    }
  } catch (e) {
    await wait(1000); /* The next status asks again. */
  }
  inc.busy = false;
  if (job && inc.key !== incidentKey() && performance.now() - inc.asked > 200) {
    inc.asked = performance.now();
    askIncidents();
  }
}
const picked = () => inc.list.find(i => i.number === inc.picked) || inc.list.at(-1);
const MARKS = {restart: 'R', regroup: 'N', fail: 'F', abandon: 'A', give_up: 'G', succeed: 'D'};
const WORDS = {restart: 'started again', regroup: 'nodes came or went', fail: 'the job failed', abandon: 'no node left', give_up: 'gave up', succeed: 'done'};
const toneOf = i => i.decision === 'succeed' ? 'done' : i.decision === 'regroup' ? 'wait' : 'bad';
const saying = i => i.cause ? i.cause.sentence : i.reason;

function pick(i) {
  inc.picked = i.number === inc.list.at(-1).number ? null : i.number; /* The newest is followed. */
  drawIncidents();
  drawLine();
}
function drawIncidents() {
  const i = picked();
  const box = $('incidents');
  show($('no-incident'), !i);
  put($('no-incident'), job && !newest() ? 'A newer job has this id: the records are that one\u2019s.' : 'No round has ended so far.');
  show($('incident'), !!i);
  while (box.children.length > inc.list.length) box.lastChild.remove();
  inc.list.slice().reverse().forEach((one, n) => {
    let li = box.children[n];
    if (!li) {
      li = make('li');
      const b = make('button');
      b.type = 'button';
      b.append(make('b'), make('span'));
      li.append(b);
      box.append(li);
    }
    const b = li.firstChild;
    b.onclick = () => pick(one);
    put(b.firstChild, 'Round ' + one.round + ': ' + WORDS[one.decision]);
    put(b.lastChild, (one.decided_at ? clock(at(one.decided_at)) + ' ' : '') + saying(one));
    set(b, 'aria-pressed', one === i);
  });
  if (i) drawDetail(i);
}
function drawDetail(i) {
  const c = i.cause;
  put($('cause'), c ? upper(c.sentence) : 'Every worker exited with status 0');
  put($('decision'), 'Then: ' + i.reason + '.');
  facts($('cause-facts'), [
    ['Round', i.round], ['Decided', i.decided_at ? clock(at(i.decided_at), true) : ''],
    ['Rank', c && c.rank], ['Host', c && c.host], ['Pid', c && c.pid], ['Status', c && c.exit_code], ['Signal', c && c.signal_name],
    ['Step', c && c.step], ['Core', c && c.core_dumped ? 'left' : ''], ['Memory', c && c.out_of_memory ? 'killed for want of it' : ''],
    ['Its own words', c && c.message], ['Ran before', i.phases_s.running === null ? '' : span(i.phases_s.running)],
    ['Restarts', i.restarts_spent + ' of ' + i.max_restarts]]);
  drawPhases(i);
  const left = i.consequences_left_out;
  show($('others-box'), i.consequences.length > 0);
  put($('others-sum'), plural(i.consequences.length + left, 'failure') + ' after it, most likely because of it');
  $('others').replaceChildren(...i.consequences.map(o => make('li', '', o.sentence)));
  show($('lines-box'), i.last_lines.length > 0);
  put($('lines'), i.last_lines.join('\n'));
  show($('trace-box'), !!i.trace);
  put($('trace'), i.trace || '');
}
const PHASES = [['detect', 'noticed'], ['stopping', 'stopped'], ['rendezvous', 'nodes met'], ['spawn', 'workers started'], ['first_step', 'first step']];
function drawPhases(i) {
  const known = PHASES.map(([name, word], n) => [n, word, i.phases_s[name] ?? -1]).filter(p => p[2] >= 0);
  const all = known.reduce((sum, p) => sum + p[2], 0);
  show($('phases-title'), known.length > 0);
  show($('phases'), known.length > 0 && all > 0);
  put($('phases-title'), 'Where the time went: ' + span(all) + ' from the failure on');
  set($('phases'), 'aria-label', known.map(p => p[1] + ' in ' + span(p[2])).join(', '));
  $('phases').replaceChildren(...known.map(([n, , s]) => {
    const el = make('i', 'ph' + n);
    el.style.flex = Math.max(s, all / 200) + ' 0 0';
    return el;
  }));
  $('phases-key').replaceChildren(...known.map(([n, word, s]) => {
    const div = make('div');
    const dt = make('dt', '', word);
    div.append(make('i', 'ph' + n), dt, make('dd', '', span(s)));
    return div;
  }));
}

/* --- the time line --- */

const line = {window: 'all', key: '', placed: [], from: 0, to: 1};
const WINDOWS = {all: Infinity, '24 h': 864e5, '1 h': 36e5, '10 min': 6e5};
choices($('zoom'), Object.keys(WINDOWS), 'all', name => { line.window = name; if (job) drawLine(); });

function spansOf(list) {
  const out = [];
  const add = (cls, from, to, text) => { if (from && (to === null || to > from)) out.push({cls, from, to, text}); };
  for (const i of list) {
    const start = at(i.started_at);
    const ran = at(i.running_at);
    const end = at(i.decided_at) || null;
    add('gather', at(i.gathering_at), start || end);
    add('start', start, ran || end);
    add('run', ran, end, 'round ' + i.round);
    add('stop', end, at(i.stopped_at) || null);
  }
  const last = list.at(-1);
  const began = at(job.round_started_at);
  if (!isOver(job) && began && (!last || last.round < job.round)) add('run', began, null, 'round ' + job.round);
  else if (!isOver(job)) add('gather', last ? at(last.stopped_at) : at(job.created_at), null);
  return out;
}
function drawLine() {
  const list = shownIncidents();
  const chosenOne = list.length ? picked() : null;
  const last = list.at(-1);
  const key = [keyOf(job), job.round, job.state, list.length, last && last.stopped_at, last && last.running_at, chosenOne && chosenOne.number].join(' ');
  if (line.key !== key) {
    line.key = key;
    const held = document.activeElement && document.activeElement.mark;
    line.placed = spansOf(list).map(s => ({...s, el: make('span', 'sp ' + s.cls, s.text || '')}));
    $('spans').replaceChildren(...line.placed.map(s => s.el));
    const marks = list.filter(i => i.decided_at).map(i => {
      const b = make('button', 'mk', MARKS[i.decision]);
      b.type = 'button';
      b.mark = i.number;
      b.tabIndex = i === chosenOne ? 0 : -1;
      b.onclick = () => pick(i);
      set(b, 'data-tone', toneOf(i));
      set(b, 'aria-pressed', i === chosenOne);
      set(b, 'aria-label', 'Round ' + i.round + ', ' + clock(at(i.decided_at)) + ': ' + saying(i));
      set(b, 'title', saying(i));
      line.placed.push({el: b, from: at(i.decided_at), mark: true});
      return b;
    });
    $('marks').replaceChildren(...marks);
    if (held) { const b = marks.find(m => m.mark === held); if (b) b.focus(); }
  }
  place();
}
function place() {
  if (!job) return;
  const to = isOver(job) && job.ended_at ? at(job.ended_at) : serverNow();
  const from = Math.max(at(job.created_at) || to - 1000, to - WINDOWS[line.window]);
  const x = ms => Math.max(0, Math.min(1, (ms - from) / Math.max(to - from, 1))) * 100;
  for (const p of line.placed) {
    const a = x(p.from);
    p.el.style.left = a + '%';
    if (p.mark) { show(p.el, p.from >= from - 1); continue; }
    const b = p.to === null ? 100 : x(p.to);
    show(p.el, p.to === null || p.to >= from);
    p.el.style.width = Math.max(b - a, 0) + '%';
  }
  const marks = innerWidth < 600 ? 3 : 6;
  while ($('ticks').children.length > marks) $('ticks').lastChild.remove();
  for (let i = 0; i < marks; i++) {
    const el = $('ticks').children[i] || $('ticks').appendChild(make('span'));
    el.style.left = i * 100 / (marks - 1) + '%';
    put(el, clock(from + (to - from) * i / (marks - 1), to - from > 864e5 && i % 2 === 0));
  }
}
$('marks').addEventListener('keydown', e => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
  const i = inc.list.findIndex(one => one.number === e.target.mark) + (step || 0);
  if (!step || !inc.list[i]) return;
  e.preventDefault();
  pick(inc.list[i]);
  const b = [...$('marks').children].find(m => m.mark === inc.list[i].number);
  if (b) b.focus();
});

/* --- ranks --- */

let order = 'by rank';
choices($('sort'), ['by rank', 'slowest first'], order, name => { order = name; if (job) drawRanks(); });
const HEADS = [['rank', ''], ['host', ''], ['local', 'wide'], ['pid', 'wide'], ['state', ''], ['step', ''], ['behind', 'wide']];
function rankRow(role) {
  const el = make('div', 'row');
  el.setAttribute('role', 'row');
  for (const [, cls] of HEADS) el.append(Object.assign(make('span', cls), {role}));
  return el;
}
const headRow = rankRow('columnheader');
HEADS.forEach(([name], i) => put(headRow.children[i], name));
const body = make('div', 'body');
body.tabIndex = 0;
body.setAttribute('role', 'rowgroup');
body.setAttribute('aria-label', 'Ranks');
$('ranks').append(headRow, body);
const rankRows = new Rows(body, 23, () => rankRow('cell'), (el, r, i) => {
  const w = r.w;
  const state = cellState(w);
  const texts = [w.rank, r.n.host, w.local_rank, w.pid || '', state === 'running' ? 'running' : CELLS[state][0] + ' ' + state,
    w.step === null ? '' : big(w.step), w.step === null ? '' : lag(w) ? big(lag(w)) + (speed.rate > 0 ? ' (' + span(lag(w) / speed.rate) + ')' : '') : ''];
  texts.forEach((t, k) => put(el.children[k], String(t)));
  set(el, 'aria-rowindex', i + 2);
  el.className = 'row ' + state;
});
function drawRanks() {
  const all = [];
  for (const n of job.nodes) for (const w of n.workers) all.push({n, w});
  const byRank = all.slice().sort((a, b) => a.w.rank - b.w.rank);
  if (order === 'slowest first') all.sort((a, b) => lag(b.w) - lag(a.w) || a.w.rank - b.w.rank);
  set($('ranks'), 'aria-rowcount', all.length + 1);
  rankRows.set(order === 'by rank' ? byRank : all);
  show($('ranks'), all.length > 0);
  if (speed.most < 0) {
    put($('progress'), all.length ? 'These workers tell no steps; muster_progress() of libmuster does.' : 'No round has begun.');
  } else {
    const slow = all.reduce((a, b) => lag(b.w) > lag(a.w) ? b : a);
    put($('progress'), 'Fastest at step ' + big(speed.most) + '; slowest is rank ' + slow.w.rank + ' on ' + slow.n.host + ', ' +
      plural(lag(slow.w), 'step') + ' behind.' + (speed.late === Infinity ? '' : (speed.behind ? ' ' + plural(speed.behind, 'rank') + (speed.behind === 1 ? ' lacks' : ' lack') :
      ' Nobody lacks') + ' more than ' + big(Math.round(speed.late)) + ' steps, ' + LATE_S + ' seconds of work.'));
  }
  drawChart(byRank);
}
const chart = {dpr: 1, w: 0, h: 0};
function sizeChart() {
  const c = $('chart');
  const style = getComputedStyle(c);
  chart.dpr = devicePixelRatio || 1;
  chart.w = c.width = Math.round(c.clientWidth * chart.dpr);
  chart.h = c.height = Math.round(c.clientHeight * chart.dpr);
  [chart.run, chart.late, chart.few] = ['--run', '--wait', '--none'].map(name => style.getPropertyValue(name));
  if (job) drawRanks();
}
new ResizeObserver(sizeChart).observe($('chart'));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', sizeChart);

/* From the line that the fastest has reached down to where each rank is: who keeps up leaves no ink. */
function drawChart(byRank) {
  const c = $('chart');
  show(c, speed.most >= 0);
  if (c.hidden || !chart.w) return;
  const {dpr, w, h, run, late, few} = chart;
  const g = c.getContext('2d');
  const range = Math.max(speed.most - speed.least, speed.late === Infinity ? 10 : speed.late * 1.5);
  const columns = Math.min(byRank.length, Math.max(1, Math.floor(w / (3 * dpr))));
  const wide = w / columns;
  g.clearRect(0, 0, w, h);
  for (let x = 0; x < columns; x++) {
    let slow = 0;
    for (let k = Math.floor(x * byRank.length / columns); k < Math.floor((x + 1) * byRank.length / columns); k++)
      slow = Math.max(slow, lag(byRank[k].w));
    g.fillStyle = slow > speed.late ? late : few;
    g.fillRect(x * wide, 2 * dpr, Math.max(1, wide - dpr), (h - 3 * dpr) * slow / range);
    g.fillStyle = run;
    g.fillRect(x * wide, 0, Math.max(1, wide - dpr), 2 * dpr);
  }
  set(c, 'aria-label', $('progress').textContent);
}

/* --- start --- */

addEventListener('hashchange', () => {
  wanted = new URLSearchParams(location.hash.slice(1));
  if (status) take();
});
addEventListener('resize', place, {passive: true});
setInterval(() => { if (!document.hidden) place(); }, 1000);
listen();
setTimeout(() => { if (!net.byEvents) poll(); }, 1500);
