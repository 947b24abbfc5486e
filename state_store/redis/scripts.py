"""What happens atomically on the server.

Every script touches keys of one slot and names them all. They are sent as text each
time (EVAL): the server knows them by their hash anyway, and there is nothing to load
again after a restart or a fail-over. Time is the server's alone.

A lease says "token owner". The token of a later lease of a session is greater: it is
the server's time in µs, or one more than the last, whichever is more.
"""

from typing import Final

_FENCE: Final = """
local function fence(key, life_ms)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', key) or '0')
  local token = string.format('%.0f', math.max(now, last + 1))
  redis.call('SET', key, token, 'PX', life_ms)
  return token
end
local function holder(key)
  local lease = redis.call('GET', key)
  if not lease then return nil, nil end
  return string.match(lease, '^(%d+) (.*)$')
end
"""

ACQUIRE: Final = (
    _FENCE
    + """
-- KEYS lease, fence, manifest; ARGV owner, lease_ms, ttl_ms, known version, needed
-- ok: token, version, manifest unless known, key | leased: owner | missing
local token, owner = holder(KEYS[1])
if owner and owner ~= ARGV[1] then return {'leased', owner} end
local state = redis.call('HMGET', KEYS[3], 'v', 'd')
if not state[1] and ARGV[5] == '1' then return {'missing'} end
if owner then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  token = fence(KEYS[2], ARGV[3])
  redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1], 'PX', ARGV[2])
end
if not state[1] then return {'ok', token, '', ''} end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if state[1] == ARGV[4] then return {'ok', token, state[1], ''} end
return {'ok', token, state[1], state[2]}
"""
)

COMMIT: Final = (
    _FENCE
    + """
-- KEYS lease, fence, manifest
-- ARGV owner, token, lease_ms, ttl_ms, expected version, strict, version, manifest, key
-- ok: token | leased: owner | stale
local version = redis.call('HGET', KEYS[3], 'v') or ''
if version == ARGV[7] then return {'ok', ARGV[2]} end
local token, owner = holder(KEYS[1])
if owner then
  if owner ~= ARGV[1] or token ~= ARGV[2] then return {'leased', owner} end
else
  -- It ran out; if nobody has changed the state since, nobody is overruled.
  if version ~= ARGV[5] then return {'leased', ''} end
  token = fence(KEYS[2], ARGV[4])
end
if ARGV[6] == '1' and version ~= ARGV[5] then return {'stale'} end
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1], 'PX', ARGV[3])
redis.call('HSET', KEYS[3], 'v', ARGV[7], 'd', ARGV[8], 'k', ARGV[9], 't', token)
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {'ok', token}
"""
)

RENEW: Final = (
    _FENCE
    + """
-- KEYS lease, fence, manifest; ARGV owner, token, lease_ms, ttl_ms, version
-- ok: token, version | leased: owner | lapsed
local version = redis.call('HGET', KEYS[3], 'v') or ''
local token, owner = holder(KEYS[1])
if owner then
  if owner ~= ARGV[1] or token ~= ARGV[2] then return {'leased', owner} end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return {'ok', token, version}
end
if version == '' or version ~= ARGV[5] then return {'lapsed'} end
token = fence(KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1], 'PX', ARGV[3])
return {'ok', token, version}
"""
)

LET_GO: Final = (
    _FENCE
    + """
-- KEYS lease, fence, manifest; ARGV owner: the lease alone, if it is ours
local token, owner = holder(KEYS[1])
if owner ~= ARGV[1] then return {'ok'} end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('DEL', KEYS[2]) end
return {'ok'}
"""
)

REMOVE: Final = (
    _FENCE
    + """
-- KEYS lease, fence, manifest; ARGV owner
-- ok: manifest that was there, the last token | leased: owner
local token, owner = holder(KEYS[1])
if owner and owner ~= ARGV[1] then return {'leased', owner} end
local state = redis.call('HMGET', KEYS[3], 'd', 't')
-- Whoever held it since the state was parked may have claimed its segments again.
local last = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), state[2] or '0')
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return {'ok', state[1] or '', string.format('%.0f', last)}
"""
)

CLAIM: Final = """
-- KEYS referrers, chunks…; ARGV session, token, life_ms, length of each chunk…
-- the indexes of the chunks that aren't there
local function live(key)
  if redis.call('PTTL', key) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', key, ARGV[3])
  end
end
local since = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
local token = string.format('%.0f', math.max(since, tonumber(ARGV[2])))
redis.call('HSET', KEYS[1], ARGV[1], token, 'n', #KEYS - 1)
live(KEYS[1])
local absent = {}
for i = 2, #KEYS do
  if redis.call('STRLEN', KEYS[i]) == tonumber(ARGV[i + 2]) then
    live(KEYS[i])
  else
    absent[#absent + 1] = i - 2
  end
end
return absent
"""

RELEASE: Final = """
-- KEYS referrers, chunks…; ARGV session, token. A later claim stands.
local since = redis.call('HGET', KEYS[1], ARGV[1])
if since and tonumber(since) > tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
local left = redis.call('HLEN', KEYS[1])
if left > 1 or (left == 1 and redis.call('HEXISTS', KEYS[1], 'n') == 0) then
  return 0
end
return redis.call('UNLINK', unpack(KEYS))
"""

PROBE: Final = """
-- KEYS any; may we write?
redis.call('SET', KEYS[1], '1', 'PX', 1000)
redis.call('DEL', KEYS[1])
return 'ok'
"""

ANY_TOKEN: Final = 1 << 52
"""Greater than any: released whoever claimed it."""

COMMANDS: Final = (
    "eval",
    "set",
    "get",
    "strlen",
    "del",
    "unlink",
    "exists",
    "pexpire",
    "pttl",
    "time",
    "hset",
    "hget",
    "hmget",
    "hgetall",
    "hdel",
    "hlen",
    "hexists",
    "scan",
)
"""What a user of ours must be allowed, in scripts and outside."""
