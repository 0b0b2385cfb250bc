-- Store a request of a remote host.
-- ARGV: twin, uid, digest, seconds left, body, limit of a queue, limit of open requests, limit of remembered requests,
-- nonce and for how many seconds it is remembered, cmd, and for how many seconds after expiry the sender is remembered.
-- Returns accepted, repeated, replayed, or the exceeded limit: queue, open or memory.
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
