"""The style sheet of the report, and the script that shows the values at the pointer."""

from nlpkit.report.svg import LEFT, RIGHT, WIDTH

STYLE = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#5a626b;--page:#fff;--card:#f6f7f9;
--line:#d9dde2;--mark:#fff0c2}
@media screen and (prefers-color-scheme:dark){:root{--text:#e6e8eb;--soft:#a3abb5;--page:#15181c;
--card:#1d2126;--line:#3a3f47;--mark:#4d3f12}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main,footer{max-width:1120px;margin:0 auto;padding:0 16px}
h1{font-size:1.6rem;line-height:1.25;margin:28px 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:36px 0 8px}
p{max-width:75ch;margin:6px 0 12px}
footer{color:var(--soft);padding-top:28px;padding-bottom:28px}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0;padding:0;list-style:none}
.legend svg{margin-right:7px;vertical-align:middle}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:16px}
figure{margin:0;padding:10px 10px 4px;background:var(--card);border-radius:8px;min-width:0}
figcaption{font-weight:600}figcaption span{color:var(--soft);font-weight:400}
figure svg{display:block;width:100%;height:auto;touch-action:pan-y}
.read{min-height:1.5em;margin:0;font-size:13px;color:var(--soft);
font-variant-numeric:tabular-nums;max-width:none}
.scroll{overflow-x:auto;margin:8px 0 20px}
.scroll:focus-visible{outline:2px solid var(--soft);outline-offset:2px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding-bottom:4px}
th,td{text-align:left;vertical-align:top;padding:3px 18px 3px 0;
border-bottom:1px solid var(--line)}
th{font-weight:400;color:var(--soft)}tbody th{min-width:12ch}
thead th,.best{font-weight:600;color:var(--text)}
td{overflow-wrap:break-word;min-width:9ch}
@media(max-width:480px){.chart text{font-size:14px!important}}
.hash{font-family:ui-monospace,monospace;font-size:13px;white-space:nowrap}
.differs{background:var(--mark)}
@media print{.charts{grid-template-columns:1fr 1fr}figure,tr{break-inside:avoid}
h2{break-after:avoid}.scroll{overflow:visible}.read{display:none}
figure{border:1px solid var(--line)}body{font-size:11px}table,.hash{font-size:10px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

# Shows the values at the pointer; the charts do not depend on it.
SCRIPT = (
    f"const WIDTH = {WIDTH}, LEFT = {LEFT}, RIGHT = {RIGHT};"
    + """
const curves = JSON.parse(document.getElementById('curves').textContent);
for (const svg of document.querySelectorAll('svg[data-key]')) {
  const cursor = svg.querySelector('.cursor'), read = svg.parentNode.querySelector('.read');
  const [x0, x1] = [Number(svg.dataset.x0), Number(svg.dataset.x1)];
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * WIDTH;
    const target = x0 + (at - LEFT) / (RIGHT - LEFT) * (x1 - x0);
    let step = null;
    const values = curves[svg.dataset.key].map(line => {
      let low = 0, high = line.x.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (line.x[middle] < target) low = middle; else high = middle;
      }
      const near = target - line.x[low] < line.x[high] - target ? low : high;
      if (step === null || Math.abs(line.x[near] - target) < Math.abs(step - target))
        step = line.x[near];
      return `${line.name} ${line.y[near] ?? 'none'} (step ${line.x[near]})`;
    });
    const x = LEFT + (step - x0) / (x1 - x0) * (RIGHT - LEFT);
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    cursor.style.display = 'inline';
    read.textContent = values.join(' · ');
  });
  svg.addEventListener('pointerleave', () => {
    cursor.style.display = 'none';
    read.textContent = '';
  });
}
"""
)
