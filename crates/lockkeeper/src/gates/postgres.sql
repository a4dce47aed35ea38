-- The fence table of PostgreSQL: the highest token of each resource, and the functions that check it.
-- Idempotent. From a shell: psql --single-transaction -f postgres.sql
--
-- A writer, in any language, inside the transaction of its write:
--   SELECT lockkeeper.check_fence('account/4472', 42);
-- or, if a trigger enforces it (see below):
--   SELECT set_config('lockkeeper.token', '42', true);
--
-- SQLSTATE LK412: the token is stale. DETAIL has the last one, as last_token=43. Roll back and stop.
-- SQLSTATE LK428: a trigger requires a token and none was announced.
--
-- Writers need: GRANT USAGE ON SCHEMA lockkeeper TO the_writer. raise_fence runs with the rights of the role that ran this
-- file, so a writer can raise a token but never lower one.

-- Serializes concurrent migrations.
SELECT pg_advisory_xact_lock(7420, 412);

CREATE SCHEMA IF NOT EXISTS lockkeeper;

CREATE TABLE IF NOT EXISTS lockkeeper.fence (
    resource text PRIMARY KEY,
    -- Never decreases.
    token bigint NOT NULL,
    checked_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Raises the token of a resource and returns the highest one: if it is not yours, your token is stale. Other transactions
-- that check the same resource wait until yours ends.
CREATE OR REPLACE FUNCTION lockkeeper.raise_fence(resource_name text, fence_token bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$
    INSERT INTO lockkeeper.fence AS f (resource, token) VALUES (resource_name, fence_token)
    ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token), checked_at = now()
    RETURNING f.token;
$$;

-- The same, but raises an error if the token is stale.
CREATE OR REPLACE FUNCTION lockkeeper.check_fence(resource_name text, fence_token bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    highest bigint := lockkeeper.raise_fence(resource_name, fence_token);
BEGIN
    IF highest > fence_token THEN
        RAISE EXCEPTION 'the token % is stale at "%": the last one is %; roll back and stop, another holder may be at work',
            fence_token, resource_name, highest
            USING ERRCODE = 'LK412', DETAIL = 'last_token=' || highest;
    END IF;
END
$$;

-- Returns the token that the transaction has announced.
CREATE OR REPLACE FUNCTION lockkeeper.announced_token() RETURNS bigint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    announced text := current_setting('lockkeeper.token', true);
BEGIN
    IF announced IS NULL OR announced = '' THEN
        RAISE EXCEPTION 'writes to this table require a lock, and the transaction has announced no token'
            USING ERRCODE = 'LK428',
                  HINT = 'SELECT set_config(''lockkeeper.token'', ''YOUR TOKEN'', true) before the write, in its transaction';
    END IF;
    RETURN announced::bigint;
END
$$;

-- Trigger for a table that is guarded by one lock:
--   CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON settlement
--       FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper.fence_table('settlement');
CREATE OR REPLACE FUNCTION lockkeeper.fence_table() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM lockkeeper.check_fence(TG_ARGV[0], lockkeeper.announced_token());
    RETURN NULL;
END
$$;

-- Trigger for a table with one lock for each row, named by a prefix and a column:
--   CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON account
--       FOR EACH ROW EXECUTE FUNCTION lockkeeper.fence_row('account/', 'id');
-- The token remains when the row is deleted.
CREATE OR REPLACE FUNCTION lockkeeper.fence_row() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    token bigint := lockkeeper.announced_token();
    before text;
    after text;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        before := to_jsonb(OLD) ->> TG_ARGV[1];
        PERFORM lockkeeper.check_fence(TG_ARGV[0] || before, token);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    after := to_jsonb(NEW) ->> TG_ARGV[1];
    -- A row that changes its key is checked under both names.
    IF after IS DISTINCT FROM before THEN
        PERFORM lockkeeper.check_fence(TG_ARGV[0] || after, token);
    END IF;
    RETURN NEW;
END
$$;
