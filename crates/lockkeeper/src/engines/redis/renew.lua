-- Renews the locks that are held with this id.
-- KEYS: the locks. ARGV: id, time to live in ms. Returns 1, or 0 if any of them is no longer held.
local id, ttl = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local all_held = 1
for _, key in ipairs(KEYS) do
  local type = redis.call('TYPE', key).ok
  if type == 'string' and string.sub(redis.call('GET', key), 1, 40) == id then
    redis.call('PEXPIRE', key, ttl)
  elseif type == 'hash' then
    local entry = redis.call('HGET', key, id)
    local token, since, expires, rest
    if entry then token, since, expires, rest = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$') end
    if entry and tonumber(expires) > now then
      redis.call('HSET', key, id, token .. ' ' .. since .. ' ' .. (now + ttl) .. ' ' .. rest)
      if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    else
      all_held = 0
    end
  else
    all_held = 0
  end
end
return all_held
