// Shows the values at the pointer; the charts do not depend on it.
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
