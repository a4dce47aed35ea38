-- Takes one lock or several: all of them or none.
-- KEYS: the locks, then the counter of tokens.
-- ARGV: id, time to live in ms, kind (x alone, s shared, or the capacity of a counted lock), permits, owner
-- Answers {1, token}, {0, ms until the holder's lease ends}, or {-1, what it is instead}.
local id, ttl, kind, permits, owner = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local counter = KEYS[#KEYS]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- The first number of an entry is its token.
local function token_of(entry)
  return tonumber(string.match(entry, '^(%d+) '))
end

-- Above the last one, and not below the server's clock in microseconds: a Redis that lost its data does not
-- begin at 1 again.
local function next_token()
  local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local token = math.max(tonumber(redis.call('GET', counter) or '0') + 1, micros)
  redis.call('SET', counter, string.format('%.0f', token))
  return token
end

-- The token of what this id holds already, which from now on has a full time to live again; nil if it holds nothing.
local function prolonged(key)
  local type = redis.call('TYPE', key).ok
  if type == 'string' then
    local value = redis.call('GET', key)
    if string.sub(value, 1, 40) ~= id then return nil end
    redis.call('PEXPIRE', key, ttl)
    return token_of(string.sub(value, 42))
  elseif type == 'hash' then
    local entry = redis.call('HGET', key, id)
    if not entry then return nil end
    local token, since, ends, rest = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
    if tonumber(ends) <= now then return nil end
    redis.call('HSET', key, id, token .. ' ' .. since .. ' ' .. (now + ttl) .. ' ' .. rest)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    return tonumber(token)
  end
end

-- A retry after an answer that was lost: all of them were taken together. The asker counts its time from this request and
-- not from the first one, so the time on the server must run from it as well.
local held = prolonged(KEYS[1])
if held then
  for index = 2, #KEYS - 1 do prolonged(KEYS[index]) end
  return {1, held}
end

for index = 1, #KEYS - 1 do
  local key = KEYS[index]
  local type = redis.call('TYPE', key).ok
  if type == 'string' then
    return {0, redis.call('PTTL', key)}
  elseif type == 'hash' then
    -- Those whose time is over are gone, whether or not anybody took them out.
    local used, shortest = 0, -1
    local all = redis.call('HGETALL', key)
    for field = 1, #all, 2 do
      if all[field] ~= 'kind' then
        local ends, taken = string.match(all[field + 1], '^%d+ %d+ (%d+) (%d+) ')
        local left = tonumber(ends) - now
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
