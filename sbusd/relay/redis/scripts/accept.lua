-- A request of another host. ARGV: twin, uid, digest, seconds left, body, bound of a queue, of open requests, of remembered ones;
-- what it was signed with, and for how long that is remembered; cmd, and for how many seconds after its expiry its asker is remembered.
if not is_new(ARGV[9], ARGV[10]) then return 'replayed' end
local twin, uid, most = ARGV[1], ARGV[2], tonumber(ARGV[6])
local seen, open = R .. 'seen:' .. twin, R .. 'open:' .. twin
local member = uid .. ':' .. ARGV[3]
local time = now()
redis.call('ZREMRANGEBYSCORE', seen, '-inf', stamp(time))
redis.call('ZREMRANGEBYSCORE', open, '-inf', stamp(time))
if redis.call('ZSCORE', seen, member) then
  count('requests-repeated')
  return 'repeated'
end
local full
if not has_room(P .. 'remote', most) then full = 'queue' end
if redis.call('ZCARD', open) >= tonumber(ARGV[7]) then full = 'open' end
if redis.call('ZCARD', seen) >= tonumber(ARGV[8]) then full = 'memory' end
if full then
  count('requests-deferred')
  return full
end
local deadline = stamp(time + tonumber(ARGV[4]))
redis.call('ZADD', seen, deadline, member)
redis.call('ZADD', open, deadline, uid)
remember_asker(twin, uid, ARGV[11], tonumber(deadline), tonumber(ARGV[12]), tonumber(ARGV[8]))
redis.call('EXPIREAT', seen, math.ceil(time + tonumber(ARGV[4])) + 60, redis.call('TTL', seen) < 0 and 'NX' or 'GT')
redis.call('RPUSH', P .. 'remote', ARGV[5])
count('requests-received')
return 'accepted'
