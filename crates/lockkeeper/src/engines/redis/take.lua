-- Takes one or several locks: all of them or none.
-- KEYS: the locks, then the token counter.
-- ARGV: id, time to live in ms, kind (x exclusive, s shared, or the capacity of a counted lock), permits, owner
-- Returns {1, token}, {0, ms until the holder's lease expires}, or {-1, the conflicting kind, capacity or key type}.
local id, ttl, kind, permits, owner = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local counter = KEYS[#KEYS]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- An entry begins with its token.
local function token_of(entry)
  return tonumber(string.match(entry, '^(%d+) '))
end

-- Greater than the last token, and not less than the server's clock in microseconds, so that a Redis that lost its
-- data does not start at 1 again.
local function next_token()
  local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local token = math.max(tonumber(redis.call('GET', counter) or '0') + 1, micros)
  redis.call('SET', counter, string.format('%.0f', token))
  return token
end

-- Renews the lock if this id already holds it, and returns its token; nil if it does not.
local function renew_if_held(key)
  local type = redis.call('TYPE', key).ok
  if type == 'string' then
    local value = redis.call('GET', key)
    if string.sub(value, 1, 40) ~= id then return nil end
    redis.call('PEXPIRE', key, ttl)
    return token_of(string.sub(value, 42))
  elseif type == 'hash' then
    local entry = redis.call('HGET', key, id)
    if not entry then return nil end
    local token, since, expires, rest = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
    if tonumber(expires) <= now then return nil end
    redis.call('HSET', key, id, token .. ' ' .. since .. ' ' .. (now + ttl) .. ' ' .. rest)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    return tonumber(token)
  end
end

-- A retry after a lost answer: the locks were taken together, so the first key decides for all of them. The client
-- counts its deadline from this request, not from the first one, so the leases are renewed here.
local held = renew_if_held(KEYS[1])
if held then
  for index = 2, #KEYS - 1 do renew_if_held(KEYS[index]) end
  return {1, held}
end

for index = 1, #KEYS - 1 do
  local key = KEYS[index]
  local type = redis.call('TYPE', key).ok
  if type == 'string' then
    return {0, redis.call('PTTL', key)}
  elseif type == 'hash' then
    -- Expired entries do not count. They are removed here, because Redis expires whole keys only.
    local used, shortest = 0, -1
    local all = redis.call('HGETALL', key)
    for field = 1, #all, 2 do
      if all[field] ~= 'kind' then
        local expires, taken = string.match(all[field + 1], '^%d+ %d+ (%d+) (%d+) ')
        local left = tonumber(expires) - now
        if left <= 0 then
          redis.call('HDEL', key, all[field])
        else
          used = used + tonumber(taken)
          if shortest < 0 or left < shortest then shortest = left end
        end
      end
    end
    local present = redis.call('HGET', key, 'kind')
    if used == 0 then
      redis.call('DEL', key)
    elseif kind == 'x' and present == 's' then
      return {0, shortest}
    elseif present ~= kind then
      return {-1, present}
    elseif kind ~= 's' and used + permits > tonumber(kind) then
      return {0, shortest}
    end
  elseif type ~= 'none' then
    return {-1, type}
  end
end

local token = next_token()
local text = string.format('%.0f', token)
for index = 1, #KEYS - 1 do
  local key = KEYS[index]
  if kind == 'x' then
    redis.call('SET', key, id .. ' ' .. text .. ' ' .. now .. ' ' .. owner, 'NX', 'PX', ttl)
  else
    redis.call('HSET', key, 'kind', kind)
    redis.call('HSET', key, id, text .. ' ' .. now .. ' ' .. (now + ttl) .. ' ' .. permits .. ' ' .. owner)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
  end
end
return {1, token}
