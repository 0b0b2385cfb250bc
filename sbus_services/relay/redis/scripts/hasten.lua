-- The network has changed: make up to ARGV[1] waiting messages for each host due now, without using up a try.
local hastened = 0
for _, twin in ipairs(redis.call('SMEMBERS', R .. 'twins')) do
  local waiting, due = P .. 'retry:' .. twin, stamp(now())
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '(' .. due, '+inf', 'LIMIT', 0, tonumber(ARGV[1]))) do
    redis.call('ZADD', waiting, due, id)
    redis.call('HINCRBY', R .. 'message:' .. id, 'tries', 1)
    hastened = hastened + 1
  end
end
if hastened > 0 then count('tries-hastened', hastened) end
return hastened
