// What Node acts on: lines of hex in (a request target), lines of hex out, one column per reading.
process.noDeprecation = true;
const path = require('node:path').posix;
const legacy = require('node:url');
const querystring = require('node:querystring');

const bare = (raw) => raw.split('?', 1)[0].split('#', 1)[0];
const url = (raw) => new URL('http://app.test' + raw);
const given = (value) => {
  if (value === null || value === undefined) throw new Error('absent');
  return value;
};

const READINGS = [
  (raw) => decodeURIComponent(bare(raw)),
  (raw) => path.normalize(decodeURIComponent(bare(raw))),
  (raw) => url(raw).pathname,
  (raw) => decodeURIComponent(url(raw).pathname),
  (raw) => path.normalize(decodeURIComponent(url(raw).pathname)),
  (raw) => decodeURIComponent(new URL(raw, 'http://app.test').pathname),
  (raw) => decodeURIComponent(legacy.parse(raw).pathname),
  (raw) => path.join('/srv', decodeURIComponent(bare(raw))),
  (raw) => given(url(raw).searchParams.get('q')),
  (raw) => given(url(raw).searchParams.getAll('q').at(-1)),
  (raw) => String([given(querystring.parse(raw.split('?').slice(1).join('?')).q)].flat()[0]),
];

const lines = require('node:fs').readFileSync(0, 'latin1').split('\n').filter((line) => line !== '');
for (const line of lines) {
  // As Node's server hands the target on: bytes as code points.
  const raw = Buffer.from(line, 'hex').toString('latin1');
  const columns = READINGS.map((reading) => {
    try {
      return '=' + Buffer.from(reading(raw), 'utf8').toString('hex');
    } catch {
      return '-';
    }
  });
  console.log(columns.join(' '));
}
